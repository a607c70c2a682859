"""Buckets: no client chooses its bucket, each has a sum or none, and none moves the model alone."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked_rounds import MaskedGrid, make_rounds
from private_rounds import ASKED, CLIP, aggregator, gradients, none_left, vectors

from samara.server.rounds import private_aggregator
from samara.server.rounds.buckets import clip_sum, combine_sums
from samara.server.rounds.releases import RELEASES_FILE, ReleasedSum, read_releases
from samara.server.rounds.secure_aggregation import MaskedAnswers
from samara.shared.errors import ConfigError, FrameError, MaskingError
from samara.shared.privacy.vector import SENSITIVITY
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.masking import KeyList, KeyRequest, MaskingKeys
from samara.shared.protocol.secure_aggregation.buckets import LEAST_TRIMMED, draw_buckets
from samara.shared.protocol.secure_aggregation.graph import least_number
from samara.shared.protocol.wire import Kind
from samara.shared.settings.config import RunConfig
from samara.shared.terms.privacy import PrivacyTerms

TOKEN = bytes(range(8))
KEYS = {client: bytes([client] * 32) for client in range(23)}


def test_buckets_are_a_function_of_token_and_keys() -> None:
    drawn = draw_buckets(TOKEN, KEYS, 4)
    assert drawn == draw_buckets(TOKEN, dict(reversed(KEYS.items())), 4)
    assert sorted(client for bucket in drawn for client in bucket) == list(KEYS)
    assert sorted(map(len, drawn)) == [4, 4, 5, 5, 5]
    others = [
        draw_buckets(bytes(8), KEYS, 4),
        draw_buckets(TOKEN, KEYS | {22: bytes(32)}, 4),
        draw_buckets(TOKEN, {c: own for c, own in KEYS.items() if c}, 4),
    ]
    for other in others:
        assert other != drawn


def test_a_client_is_in_every_bucket_as_often() -> None:
    """This holds for any client index and any key."""
    at = [
        next(n for n, bucket in enumerate(draw_buckets(bytes([n] * 8), KEYS, 4)) if 7 in bucket)
        for n in range(250)
    ]
    assert np.bincount(at).min() > 25


def test_fewer_clients_than_a_bucket_are_one() -> None:
    assert draw_buckets(TOKEN, {4: b"", 2: b""}, 3) == [[2, 4]]


def digests_of(grid: MaskedGrid) -> dict[int, bytes]:
    return {
        client: MaskingKeys.decode(frame).digest
        for (stage, client), frame in grid.sent.items()
        if stage == "keys"
    }


def token_of_keys(grid: MaskedGrid) -> bytes:
    return next(
        MaskingKeys.decode(f).token for (stage, _), f in grid.sent.items() if stage == "keys"
    )


def assert_sums_of(made: MaskedAnswers, grid: MaskedGrid, buckets: list[list[int]]) -> None:
    assert made.total.problem == ""
    assert [one.clients for one in made.total.sums] == [len(bucket) for bucket in buckets]
    for one, bucket in zip(made.total.sums, buckets, strict=True):
        plain = np.sum([grid.vectors[client] for client in bucket], axis=0, dtype=np.int64)
        assert one.numbers.tolist() == plain.tolist()


@pytest.mark.parametrize("leaving", ["", "shares", "report", "reveal"])
def test_the_sums_are_those_of_the_buckets_that_were_drawn(tmp_path: Path, leaving: str) -> None:
    """If two clients leave, three of five are too few for a sum; the other buckets go on."""
    server, grid = make_rounds(tmp_path, 23, minimum=8, bucket=4)
    drawn: list[list[int]] = []

    def forge(stage: str, client: int, frame: bytes) -> bytes:
        if stage == "keys" and len(digests_of(grid)) == 22:
            known = digests_of(grid) | {client: MaskingKeys.decode(frame).digest}
            drawn.extend(draw_buckets(MaskingKeys.decode(frame).token, known, 4))
            if leaving:
                grid.leaves = dict.fromkeys(drawn[0][:2], leaving)
        return frame

    grid.forge = forge
    made = server.run_round()
    assert len(drawn[0]) == 5
    kept = drawn if leaving in ("", "reveal") else drawn[1:]
    if leaving == "reveal":  # three of five reveal, and four are needed
        assert least_number(5) == 4
        kept = drawn[1:]
    assert_sums_of(made, grid, kept)
    assert set(made.active) >= {client for bucket in kept for client in bucket}
    if leaving == "shares":  # those that were left in the bucket have done nothing wrong
        assert set(made.active) == set(grid.clients) - set(grid.leaves)


def test_one_that_leaves_is_left_out_of_its_bucket(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path, 20, minimum=8, bucket=4)
    gone = list(grid.clients)[7]
    grid.leaves = {gone: "report"}
    made = server.run_round()
    drawn = draw_buckets(token_of_keys(grid), digests_of(grid), 4)
    assert_sums_of(made, grid, [[c for c in bucket if c != gone] for bucket in drawn])


def test_a_round_with_too_few_in_all_buckets_is_abandoned(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path, 12, minimum=12, bucket=4)
    grid.leaves = {next(iter(grid.clients)): "report"}
    assert server.run_round().total.problem == (
        "the round is abandoned: 11 of 12 clients are in a sum, but 12 are needed"
    )


def test_clients_of_two_buckets_share_nothing(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path, 12, minimum=8, bucket=4)
    assert len(server.run_round().total.sums) == 3
    drawn = draw_buckets(token_of_keys(grid), digests_of(grid), 4)
    for client, masking in grid.devices.items():
        (bucket,) = [own for own in drawn if client in own]
        assert masking.memory.read_masking().seed == b""  # all have revealed, and forgotten
        sent = grid.sent["shares", client]
        assert len(sent) == len(grid.sent["shares", bucket[0]])


@pytest.fixture
def lists(tmp_path: Path) -> tuple[MaskedGrid, int, BucketKeyList, dict[int, MaskingKeys]]:
    """The messages that a client receives after twelve clients have sent their keys."""
    _, grid = make_rounds(tmp_path, 12, minimum=8, bucket=4)
    keys = {
        client: MaskingKeys.decode(masking.answer(KeyRequest(TOKEN).encode()))
        for client, masking in grid.clients.items()
    }
    digests = {client: own.digest for client, own in keys.items()}
    bucket = draw_buckets(TOKEN, digests, 4)[0]
    listed = KeyList(TOKEN, tuple(keys), tuple(keys[one] for one in bucket))
    return grid, bucket[1], BucketKeyList(listed, tuple(digests.values())), keys


def test_a_client_takes_no_bucket_but_the_one_that_was_drawn(
    lists: tuple[MaskedGrid, int, BucketKeyList, dict[int, MaskingKeys]],
) -> None:
    grid, client, good, keys = lists
    masking, listed = grid.clients[client], good.listed
    stranger = next(c for c in keys if c not in {own.client for own in listed.keys})
    swapped = sorted({own.client for own in listed.keys[1:]} | {client, stranger})
    other = replace(listed, keys=tuple(keys[one] for one in swapped))
    forged = [*good.digests]
    forged[listed.clients.index(listed.keys[-1].client)] = bytes(32)
    fewer = replace(listed, clients=listed.clients[:-1])
    refused: list[tuple[bytes, type[Exception]]] = [
        (replace(good, listed=other).encode(), FrameError),
        (replace(good, digests=tuple(forged)).encode(), FrameError),
        (replace(good, listed=fewer).encode(), FrameError),
        (
            KeyList(TOKEN, tuple(own.client for own in listed.keys), listed.keys).encode(),
            MaskingError,
        ),
        (listed.encode(), MaskingError),
    ]
    for frame, error in refused:
        with pytest.raises(error):
            masking.answer(frame)
    assert masking.answer(good.encode())[3] == Kind.SEALED_SHARES


def test_a_client_without_buckets_takes_no_list_of_them(tmp_path: Path) -> None:
    _, grid = make_rounds(tmp_path, 4)
    keys = [
        MaskingKeys.decode(masking.answer(KeyRequest(TOKEN).encode()))
        for masking in grid.clients.values()
    ]
    listed = KeyList(TOKEN, tuple(grid.clients), tuple(keys))
    frame = BucketKeyList(listed, tuple(own.digest for own in keys)).encode()
    with pytest.raises(MaskingError, match="the list of keys is not a key_list frame"):
        next(iter(grid.clients.values())).answer(frame)


def in_order(token: bytes, digests: dict[int, bytes], size: int) -> list[list[int]]:
    """Fill buckets in the order of client indices, so that a test knows the members."""
    clients = sorted(digests)
    return [clients[first : first + size] for first in range(0, len(clients), size)]


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_aggregator, "draw_buckets", in_order)


BUCKETS = {"bucket": 3, "noise_multiplier": 0.001}
"""Settings with little noise, so that the public norm is that of honest reports."""


def bucketed(folder: Path, noise: Any, **privacy: Any) -> Any:
    return aggregator(folder, noise, **(BUCKETS | privacy))


@pytest.mark.usefixtures("ordered")
@pytest.mark.parametrize("count", [5, 6, 9])
def test_a_hostile_bucket_moves_no_number_beyond_those_of_the_others(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(count)
    rows = rng.uniform(-0.5, 0.5, (3 * count, 6))
    honest = rows.reshape(count, 3, 6).mean(axis=1)[1:]

    def hostile(number: int, sigma: int) -> Any:
        """Return arbitrary numbers for the first bucket, like a hostile client under masks."""
        moved = rng.integers(-(2**61), 2**61, number) if not calls else np.zeros(number, int)
        calls.append(number)
        return moved.astype(object)

    calls: list[int] = []
    made = bucketed(tmp_path, hostile).aggregate(ASKED, vectors(*rows), 3, expected=3 * count)
    assert len(calls) == made.buckets == count
    moved = gradients(made)
    assert np.all(moved >= honest.min(axis=0) - 1e-6)
    assert np.all(moved <= honest.max(axis=0) + 1e-6)
    assert made.loss == pytest.approx(0.5, abs=1e-6)
    assert made.observation is not None
    assert made.observation.curvature == pytest.approx(2.0, abs=1e-4)
    assert made.reports == 3 * count


@pytest.mark.usefixtures("ordered")
def test_fewer_than_five_buckets_are_a_plain_sum_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (3 * LEAST_TRIMMED - 3, 6))
    with caplog.at_level(logging.WARNING, "samara.server"):
        made = bucketed(tmp_path, lambda n, sigma: np.zeros(n, object)).aggregate(
            ASKED, vectors(*rows), 3, expected=12
        )
    np.testing.assert_allclose(gradients(made), rows.mean(axis=0), atol=1e-6)
    assert made.privacy["buckets"] == LEAST_TRIMMED - 1
    assert "a hostile client can move the plain sum of 4 buckets; from 5 buckets on" in caplog.text


@pytest.mark.usefixtures("ordered")
def test_a_plain_sum_is_of_sums_no_longer_than_honest_ones(tmp_path: Path) -> None:
    calls: list[int] = []

    def hostile(number: int, sigma: int) -> Any:
        calls.append(number)
        return np.full(number, 2**60 if len(calls) == 1 else 0, object)

    made = bucketed(tmp_path, hostile)
    made.aggregate(ASKED, vectors(*[[0.0] * 6] * 6), 3, expected=6)
    (release,) = read_releases(tmp_path / RELEASES_FILE)
    norms = [float(np.linalg.norm(one.total)) for one in release.sums]
    longest = made.mechanism.longest_sum(3, 0.001)
    assert norms[0] == pytest.approx(longest)
    assert norms[1] < 3 * SENSITIVITY < longest < 3.1 * SENSITIVITY


def test_a_sum_within_the_norm_is_as_it_was() -> None:
    total = np.array([3, -4], np.int64)
    assert clip_sum(total, 5.0) is total
    assert clip_sum(np.array([30, -40]), 5.0).tolist() == [3, -4]


@pytest.mark.usefixtures("ordered")
def test_every_bucket_has_all_noise_and_a_round_is_paid_once(tmp_path: Path) -> None:
    sigmas: list[tuple[int, int]] = []

    def known(count: int, sigma: int) -> Any:
        sigmas.append((count, sigma))
        return np.arange(count).astype(object)

    made = bucketed(tmp_path, known, noise_multiplier=1.5)
    done = made.aggregate(ASKED, vectors(*[[0.1] * 6] * 15), 3, expected=15)
    assert sigmas == [(9, 3 * SENSITIVITY // 2)] * 5
    (tmp_path / "single").mkdir()
    single = aggregator(tmp_path / "single", known, noise_multiplier=1.5)
    single.aggregate(ASKED, vectors([0.1] * 6), 1, expected=1)
    assert made.epsilon == done.epsilon == single.epsilon > 0


@pytest.mark.usefixtures("ordered")
def test_released_buckets_are_used_again(tmp_path: Path) -> None:
    """After a kill between release and ledger, all buckets are in one line of the file."""
    rng = np.random.default_rng(0)

    def noise(count: int, sigma: int) -> Any:
        return rng.integers(-sigma, sigma, count).astype(object)

    rows = vectors(*rng.uniform(-0.5, 0.5, (15, 6)))
    first = bucketed(tmp_path, noise).aggregate(ASKED, rows, 3, 15)
    again = bucketed(tmp_path, none_left).aggregate(ASKED, vectors(), 3, 15)
    assert again.delta.encode() == first.delta.encode()
    assert (again.observation, again.privacy) == (first.observation, first.privacy)
    assert len((tmp_path / RELEASES_FILE).read_text().splitlines()) == 1
    cut = (tmp_path / RELEASES_FILE).read_bytes()[:-40]
    (tmp_path / RELEASES_FILE).write_bytes(cut)
    assert bucketed(tmp_path, noise).epsilon == 0  # half a release was never used


def test_the_noise_of_a_trimmed_mean_is_no_more_than_is_said() -> None:
    rng, multiplier, clients, runs = np.random.default_rng(1), 2.0, 4.0, 4000
    for count in (5, 8, 20):
        seen = []
        for noise in rng.normal(0, multiplier * SENSITIVITY, (runs, count, 4)):
            sums = [ReleasedSum(multiplier, own.astype(np.int64), clients) for own in noise]
            made = combine_sums(sums, CLIP, has_indicator=False)
            seen.append(made.total.count)
        assert made.clients == count * clients
        said = 4 * made.noise_multiplier  # a 1 is a fourth of the sensitivity
        assert 0.8 * said < np.std(seen) < said


def settings_with(**changes: Any) -> dict[str, Any]:
    own = {"privacy.mode": "distributed", "privacy.honest-share": 0.8, "privacy.epsilon": 4.0}
    own |= {"privacy.bucket": 9, "cohort.minimum": 45, "rounds": 2, "seed-policy": "shared"}
    own |= {"aggregation.rule": "mean", "method": "global"}
    return own | {key.replace("__", "."): value for key, value in changes.items()}


def test_the_survivors_of_a_bucket_have_all_the_noise() -> None:
    """At least seven of nine clients are in a sum, and five of these are honest."""
    config = RunConfig.of(settings_with(), "test")
    mechanism = config.privacy.mechanism(2, 45, 11)
    assert mechanism.honest == 5
    terms = PrivacyTerms.of(settings_with(), 2, 8)
    assert terms is not None
    assert terms.mechanism == mechanism
    assert "hold for each bucket" in terms.describe()[1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"privacy__bucket": 2}, "privacy.bucket: 2 must be from 3 to cohort.minimum = 45"),
        ({"privacy__bucket": 46}, "privacy.bucket: 46 must be from 3 to cohort.minimum = 45"),
        ({"privacy__mode": "none"}, "buckets drawn with privacy none: only the sum of a"),
    ],
)
def test_buckets_that_hide_or_protect_nothing_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        RunConfig.of(settings_with(**changes), "test")
