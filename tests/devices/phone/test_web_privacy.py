"""The phone page's noise, clip, masks and frames equal Python's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_frames import check_frames, golden, random_frames
from typescript import RunCore, chromium_runner, node_runner

from samara.shared.privacy.accountant import epsilon_of
from samara.shared.privacy.discrete_gaussian import sample_noise
from samara.shared.privacy.vector import add_noise
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.masking import (
    KeyList,
    KeyRequest,
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SignatureList,
    SurvivorList,
    SurvivorSignature,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import (
    MaskedReport,
    NoisedVectorReport,
    VectorReport,
    hide_report,
)
from samara.shared.protocol.secure_aggregation.buckets import draw_buckets
from samara.shared.protocol.secure_aggregation.graph import neighbourhood_of
from samara.shared.terms.privacy import PrivacyTerms

FRAMES = 1100
PRIVATE = {"privacy.mode": "distributed", "privacy.honest-share": 0.7, "privacy.epsilon": 4.0}


@pytest.fixture(scope="module")
def run_core(tmp_path_factory: pytest.TempPathFactory) -> RunCore:
    return node_runner(tmp_path_factory.mktemp("core"))


def test_keys_masks_ciphertexts_and_shares_of_the_golden_file(run_core: RunCore) -> None:
    case = golden("masks.json")
    (made,) = run_core([["masks", case]])
    assert made.pop("commitments") == [client["commitment"] for client in case["clients"]]
    assert made.pop("isSame")  # a fresh key is that of its secret
    assert made == {key: case[key] for key in made}
    assert made.keys() == {"clients_digest", "pairs", "masked", "shares"}


@pytest.mark.slow
def test_chromium_has_the_golden_masks(tmp_path: Path) -> None:
    test_keys_masks_ciphertexts_and_shares_of_the_golden_file(chromium_runner(tmp_path))


def known_below() -> Callable[[int], int]:
    """Random numbers that the page's core draws in the same way."""
    state = 1

    def below(limit: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**512
        return (state >> 64) % limit

    return below


def test_noise_from_the_same_randomness_is_the_same(run_core: RunCore) -> None:
    sigmas = [1, 2, 1000, 2**24, 3 * 2**38]
    found = run_core([["noise", 60, sigma] for sigma in sigmas])
    for sigma, samples in zip(sigmas, found, strict=True):
        assert samples == [str(one) for one in sample_noise(60, sigma, known_below())]
    vector = [0, 2**24, -(2**24), 5]
    (noised,) = run_core([["noised", vector, 2**41]])

    def noise(count: int, sigma: int) -> Any:
        return sample_noise(count, sigma, known_below())

    expected = add_noise(np.array(vector, np.int32), 2**41, noise)
    assert noised == [str(one) for one in expected.tolist()]


def test_the_browsers_own_randomness_is_gaussian(run_core: RunCore) -> None:
    (found,) = run_core([["randomNoise", 4000, 50]])
    assert (found["outside"], found["seen"] > 150) == (0, True)
    assert abs(found["mean"]) < 7 * 50 / 4000**0.5
    assert found["variance"] == pytest.approx(2500, rel=0.2)


def test_vectors_are_clipped_as_by_python_and_never_longer(run_core: RunCore) -> None:
    random = np.random.default_rng(5)
    asked, expected = [], []
    for number in range(300):
        gradients = random.normal(0, 10.0 ** random.integers(-3, 4), 6).astype(np.float32)
        curvature = None if number % 3 == 0 else float(random.normal(0, 20))
        loss, clip = float(random.normal(0, 2)), float(10.0 ** random.integers(-2, 3))
        has_indicator = bool(number % 2)
        report = Report(bytes(8), 4, 9, loss, gradients.reshape(2, 3), curvature=curvature)
        hidden = hide_report(report, clip, 0, has_indicator=has_indicator)
        asked.append(["vector", gradients.tolist(), loss, curvature, clip, has_indicator])
        expected.append(hidden.vector)
    for found, one in zip(run_core(asked), expected, strict=True):
        assert np.abs(np.array(found) - one).max() <= 1  # the norm may be rounded otherwise
        VectorReport.decode(VectorReport(bytes(8), 4, np.array(found, np.int32)).encode())


def made_keys(random: np.random.Generator, token: bytes, client: int) -> MaskingKeys:
    parts = (random.bytes(size) for size in (65, 65, 32, 120, 71))
    return MaskingKeys(token, client, *parts)


def made_list(random: np.random.Generator) -> KeyList:
    token, clients = random.bytes(8), ascending(random, 4)
    keys = tuple(made_keys(random, token, client) for client in clients[1:])
    return KeyList(token, clients, keys)


def ascending(random: np.random.Generator, count: int) -> tuple[int, ...]:
    drawn = random.choice(2**20, size=count, replace=False) * (2**12 - 1)
    return tuple(sorted(drawn.tolist()))


def by_client(random: np.random.Generator, size: int) -> dict[int, bytes]:
    return {client: random.bytes(size) for client in ascending(random, 3)}


def made_shares(random: np.random.Generator) -> RevealedShares:
    first, second, third = ascending(random, 3)
    seeds, keys = {first: random.bytes(33), third: random.bytes(33)}, {second: random.bytes(33)}
    return RevealedShares(random.bytes(8), 4, seeds, keys)


FRAMES_OF: tuple[Callable[[np.random.Generator], Any], ...] = (
    lambda random: VectorReport(
        random.bytes(8), 4, random.integers(-(2**22), 2**22, size=5).astype(np.int32)
    ),
    lambda random: NoisedVectorReport(random.bytes(8), 4, random.integers(-(2**42), 2**42, size=5)),
    lambda random: MaskedReport(
        random.bytes(8), 4, random.integers(2**64, size=5, dtype=np.uint64)
    ),
    lambda random: KeyRequest(random.bytes(8)),
    lambda random: made_keys(random, random.bytes(8), 7),
    made_list,
    lambda random: BucketKeyList(made_list(random), tuple(random.bytes(32) for _ in range(4))),
    lambda random: SealedShares(random.bytes(8), 4, by_client(random, 94)),
    lambda random: SurvivorList(random.bytes(8), ascending(random, 5)),
    lambda random: SurvivorSignature(random.bytes(8), 4, random.bytes(71)),
    lambda random: SignatureList(random.bytes(8), by_client(random, 70)),
    made_shares,
)


def test_random_masking_frames_are_read_refused_and_written_as_by_python(
    run_core: RunCore,
) -> None:
    frames = list(random_frames(np.random.default_rng(6), FRAMES_OF, FRAMES))
    check_frames(run_core, frames)


def test_neighbours_and_buckets_are_those_of_python(run_core: RunCore) -> None:
    random, asked, expected = np.random.default_rng(7), list[list[Any]](), list[list[int]]()
    for count in (3, 101, 102, 250):
        clients, token = ascending(random, count), random.bytes(8)
        digests = {client: random.bytes(32) for client in clients}
        hexadecimal = [digest.hex() for digest in digests.values()]
        for client in (clients[0], clients[count // 2], clients[-1]):
            asked.append(["neighbourhood", client, token.hex(), clients])
            expected.append(neighbourhood_of(client, token, clients))
            asked.append(["bucket", client, token.hex(), clients, hexadecimal, 7])
            expected.append(next(one for one in draw_buckets(token, digests, 7) if client in one))
    assert run_core(asked) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"cohort.minimum": 10},
        {"cohort.minimum": 12, "privacy.bucket": 6, "privacy.secure-aggregation": True},
        {"privacy.mode": "local"},
        {"privacy.mode": "central", "privacy.adaptive-clip": True},
        {"privacy.noise-multiplier": 1e-7, "cohort.minimum": 3},
    ],
    ids=str,
)
def test_noise_and_its_cost_follow_from_settings_as_in_python(
    run_core: RunCore, changes: dict[str, Any]
) -> None:
    settings = PRIVATE | changes
    (found,) = run_core([["privacy", settings, 20, 64]])
    terms = PrivacyTerms.of(settings, 20, 64)
    assert terms is not None
    sigma = terms.mechanism.client_sigma
    assert found["sigma"] == pytest.approx(sigma, abs=1 if sigma > 2**20 else 0)
    assert found["rho"] == pytest.approx(terms.mechanism.rho, rel=1e-9)
    named = (found["mode"], found["isAdaptive"], found["isMasked"], found["bucket"])
    expected = (terms.mechanism.mode, terms.is_adaptive, terms.is_masked, terms.bucket)
    assert (*named, found["minimum"]) == (*expected, terms.minimum)


def test_what_is_spent_is_counted_as_in_python(run_core: RunCore) -> None:
    costs = [1e-9, 0.01, 0.5, 3.0, 1e4]
    found = run_core([["epsilon", rho] for rho in costs])
    np.testing.assert_allclose(found, [epsilon_of(rho, 1e-5) for rho in costs], rtol=1e-9)


def test_settings_without_noise_are_refused(run_core: RunCore) -> None:
    wrong: list[dict[str, Any]] = [
        {"privacy.mode": "secret"},
        {"privacy.honest-share": 0.0, "cohort.minimum": 3},
        {"privacy.epsilon": 0.0, "cohort.minimum": 3},
        {"privacy.delta": 1.0, "cohort.minimum": 3},
        {"privacy.noise-multiplier": 1e300, "cohort.minimum": 3},
        {"privacy.bucket": 5, "cohort.minimum": 3},
        {"privacy.secure-aggregation": "yes", "cohort.minimum": 3},
    ]
    found = run_core([["privacy", PRIVATE | changes, 20, 64] for changes in wrong])
    assert found == ["SettingsError"] * len(wrong)
    none = [["privacy", {"privacy.mode": "none"}, 20, 64], ["privacy", PRIVATE, 0, 64]]
    assert run_core(none) == [None, None]
