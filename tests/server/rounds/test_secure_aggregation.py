"""Secure aggregation gives the survivors' sum or nothing, whoever leaves, forges or repeats."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked_rounds import STAGES, Device, MaskedGrid, make_rounds

from samara.client.protocol.masking_client import MaskingClient
from samara.server.rounds.secure_aggregation import MaskedAnswers
from samara.shared.errors import MaskingError, SamaraError
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
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.frames.vector_report import MaskedReport, VectorReport
from samara.shared.protocol.secure_aggregation import graph
from samara.shared.protocol.secure_aggregation.graph import least_number
from samara.shared.protocol.secure_aggregation.keys import RoundKey, digest_of_clients
from samara.shared.protocol.wire import Kind, kind_of

SCHEDULES = 100


def reported(grid: MaskedGrid) -> list[int]:
    return [client for stage, client in grid.sent if stage == "report"]


def assert_sum(made: MaskedAnswers, grid: MaskedGrid) -> None:
    """Check that a round's digest is that of its survivors' plain sum."""
    vectors = [grid.vectors[client] for client in made.reporting]
    assert made.total.problem == ""
    assert made.total.clients == len(vectors)
    (total,) = made.total.sums
    assert total.numbers.tolist() == np.sum(vectors, axis=0, dtype=np.int64).tolist()


def assert_nothing_unmasked(grid: MaskedGrid) -> None:
    """Check that every sent report is masked, and that no client has both secrets revealed."""
    revealed = dict[int, set[str]]()
    for (stage, client), frame in grid.sent.items():
        if stage == "report" and kind_of(frame) is Kind.MASKED_REPORT:
            numbers = MaskedReport.decode(frame).vector
            assert not set(numbers.tolist()) & set(grid.vectors[client].astype("u8").tolist())
        if stage == "reveal" and kind_of(frame) is Kind.REVEALED_SHARES:
            shares = RevealedShares.decode(frame)
            for kind, owners in (("seed", shares.seeds), ("key", shares.keys)):
                for owner in owners:
                    revealed.setdefault(owner, set()).add(kind)
    assert all(len(kinds) == 1 for kinds in revealed.values())


def schedule(seed: int, clients: list[int]) -> dict[int, str]:
    """Choose clients that leave, and the stage before which each leaves."""
    rng = random.Random(seed)
    gone = rng.sample(clients, rng.randint(0, min(4, len(clients))))
    return {client: rng.choice(STAGES) for client in gone}


@pytest.mark.parametrize("degree", [100, 6])
def test_a_round_is_the_sum_of_its_survivors_or_abandoned(
    tmp_path: Path, degree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With degree 6, the graph of ten clients is not complete."""
    monkeypatch.setattr(graph, "DEGREE", degree)
    outcomes, by_stage = Counter[bool](), Counter[str]()
    server, grid = make_rounds(tmp_path, 10)
    for number in range(1, SCHEDULES // 2 + 1):
        grid.sent.clear()
        grid.leaves = schedule(100 * degree + number, list(grid.clients))
        made = server.run_round(number)
        assert_nothing_unmasked(grid)
        outcomes[bool(made.total.problem)] += 1
        by_stage.update(grid.leaves.values())
        if made.total.problem:
            assert made.total.problem.startswith("the round is abandoned: ")
            assert made.total.clients == 0
            assert made.total.sums == ()
        else:
            assert_sum(made, grid)
            assert set(made.reporting) == set(grid.clients) - {
                client for client, stage in grid.leaves.items() if stage not in STAGES[3:]
            }
        if degree == 100:  # everyone shares with everyone: only how many leave matters
            keys = sum(stage == "keys" for stage in grid.leaves.values())
            enough = 10 - len(grid.leaves) >= least_number(10 - keys)
            assert enough <= (not made.total.problem)
    assert min(outcomes.values()) >= 5
    assert set(by_stage) == set(STAGES)


def test_fresh_masks_in_every_round(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path, 4)
    seen = []
    for number in (1, 2):
        assert_sum(server.run_round(number), grid)
        seen.append(dict(grid.sent))
    assert all(seen[0][key] != seen[1][key] for key in seen[0])


def test_a_round_that_was_begun_is_not_begun_again(tmp_path: Path) -> None:
    """After a kill of the server, only another round of the same clients succeeds."""
    server, grid = make_rounds(tmp_path)
    server.begin(1)
    again, _ = make_rounds(tmp_path)
    again.grid = grid
    grid.sent.clear()
    assert again.begin(1).messages == []
    made = again.aggregation.finish([])
    assert made.total.problem == (
        "the round is abandoned: the server was stopped after masking had begun"
    )
    assert not grid.sent


def test_a_round_that_ends_early_waits_for_two_thirds(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path)
    asked = replace(server.request(1), wanted_reports=4)
    assert server.aggregation.begin(asked, grid).wanted_reports == 6


def test_a_released_round_asks_nobody(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path)
    server.is_released = True
    assert server.begin().messages == []
    assert not grid.sent
    assert server.aggregation.finish([]).total.problem == ""


def forged_share(frame: bytes, owners: Callable[[int], bool] = lambda owner: True) -> bytes:
    shares = RevealedShares.decode(frame)
    seeds = {o: bytes(33) if owners(o) else s for o, s in shares.seeds.items()}
    return replace(shares, seeds=seeds).encode()


@pytest.mark.parametrize("forgers", [1, 4])
def test_forged_shares_lead_to_the_sum_or_to_none(tmp_path: Path, forgers: int) -> None:
    server, grid = make_rounds(tmp_path)
    liars = list(grid.clients)[:forgers]

    def forge(stage: str, client: int, frame: bytes) -> bytes:
        return forged_share(frame) if stage == "reveal" and client in liars else frame

    grid.forge = forge
    made = server.run_round()
    if forgers == 1:
        assert_sum(made, grid)
    else:
        assert "8 shares do not recover the secret of client" in made.total.problem


def change(frame: bytes, **changes: Any) -> bytes:
    kinds: dict[Kind, Any] = {
        kind.KIND: kind for kind in (MaskingKeys, SealedShares, MaskedReport, SurvivorSignature)
    }
    encoded: bytes = replace(kinds[kind_of(frame)].decode(frame), **changes).encode()
    return encoded


def resigned(frame: bytes, **changes: Any) -> bytes:
    """Change a keys frame, and sign it with a device key that the server does not know."""
    device = Device()
    keys = replace(MaskingKeys.decode(frame), **({"device_key": device.public} | changes))
    return replace(keys, signature=device.sign(keys.signed)).encode()


def without_first(frame: bytes) -> bytes:
    shares = SealedShares.decode(frame)
    return replace(shares, sealed=dict(list(shares.sealed.items())[1:])).encode()


def shorter(frame: bytes) -> bytes:
    report = MaskedReport.decode(frame)
    return replace(report, vector=report.vector[1:]).encode()


FORGERIES: dict[str, tuple[str, str, Callable[[bytes], bytes]]] = {
    "another client's keys": ("keys", "its answer names client 5", lambda f: change(f, client=5)),
    "unsigned keys": (
        "keys",
        "have no valid signature of its device",
        lambda f: change(f, commitment=bytes(32)),
    ),
    "another device": ("keys", "a key that is not its device's key", resigned),
    "no key": ("keys", "not a point on P-256", lambda f: f),
    "shares for others": (
        "shares",
        "its shares are not for its neighbours",
        without_first,
    ),
    "too short": ("report", "reports 6 numbers, but the instruction asks for 7", shorter),
    "another round": (
        "report",
        "it answers an instruction that was not sent to it",
        lambda f: change(f, token=bytes(8)),
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_answer_is_refused_alone(tmp_path: Path, name: str) -> None:
    server, grid = make_rounds(tmp_path)
    stage, reason, forge = FORGERIES[name]
    liar = list(grid.clients)[2]

    def forged(at: str, client: int, frame: bytes) -> bytes:
        if (at, client) != (stage, liar):
            return frame
        if name == "no key":
            keys = replace(MaskingKeys.decode(frame), mask_key=b"\4" + bytes(64))
            return replace(keys, signature=grid.devices[liar].sign(keys.signed)).encode()
        return forge(frame)

    grid.forge = forged
    made = server.run_round()
    assert_sum(made, grid)
    assert list(made.refused) == [liar]
    assert reason in made.refused[liar]
    assert liar not in made.reporting


def test_a_sum_that_no_honest_reports_make_is_abandoned(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path)
    grid.vectors[min(grid.vectors)] = np.full(7, 2**31 - 1, np.int32)
    assert "larger than the norms of honest reports allow" in server.run_round().total.problem


class Asked:
    """A client in a round, and a server that can send it arbitrary requests."""

    def __init__(self, folder: Path, until: str) -> None:
        self.server, self.grid = make_rounds(folder)
        self.grid.leaves = dict.fromkeys(list(self.grid.clients)[:1], until)
        request = self.server.begin()
        replies = self.grid.send_and_receive(request.messages) if request.messages else []
        self.server.aggregation.finish(replies)
        self.client_index = min(self.grid.clients)
        self.client: MaskingClient = self.grid.clients[self.client_index]
        self.device = self.grid.devices[self.client_index]
        self.token = self.device.memory.read_masking().token

    def signatures(self, survivors: SurvivorList, signers: list[int]) -> bytes:
        signed = survivors.signed(digest_of_clients(self.token, tuple(self.grid.clients)))
        made = {client: self.grid.devices[client].sign(signed) for client in signers}
        return SignatureList(self.token, dict(sorted(made.items()))).encode()


@pytest.fixture
def reporting(tmp_path: Path) -> Asked:
    """A client that has sent its masked report and nothing later."""
    return Asked(tmp_path, "signature")


def test_a_client_signs_one_list_and_reveals_once(reporting: Asked) -> None:
    clients = tuple(reporting.grid.clients)
    listed = SurvivorList(reporting.token, clients[:-1])
    signature = SurvivorSignature.decode(reporting.client.answer(listed.encode()))
    assert signature.client == reporting.client_index
    with pytest.raises(MaskingError, match="before the masked report, or twice"):
        reporting.client.answer(SurvivorList(reporting.token, clients).encode())
    few = reporting.signatures(listed, list(clients[:5]))
    with pytest.raises(MaskingError, match="too few neighbours have signed"):
        reporting.client.answer(few)
    other = reporting.signatures(SurvivorList(reporting.token, clients), list(clients[:-1]))
    with pytest.raises(MaskingError, match="has not signed this list of survivors"):
        reporting.client.answer(other)
    with pytest.raises(MaskingError, match="too few neighbours have signed"):  # one who left
        reporting.client.answer(reporting.signatures(listed, list(clients)))
    enough = reporting.signatures(listed, list(clients[:6]))
    shares = RevealedShares.decode(reporting.client.answer(enough))
    assert list(shares.keys) == [clients[-1]]
    assert list(shares.seeds) == list(clients[:-1])
    for frame in (enough, listed.encode(), KeyRequest(reporting.token).encode()):
        with pytest.raises(MaskingError):
            reporting.client.answer(frame)
    assert not reporting.device.memory.read_masking().mask_secret


def test_secrets_are_not_shown(reporting: Asked) -> None:
    """No repr contains a secret, so neither tracebacks nor logs do."""
    state = reporting.device.memory.read_masking()
    for secret in (state.mask_secret, state.sealing_secret, state.seed):
        assert len(secret) == 32
        assert repr(secret)[2:-1] not in repr((state, RoundKey(secret)))


@pytest.mark.parametrize(
    ("choose", "reason"),
    [
        (lambda clients: clients[1:], "lacks this client"),
        (lambda clients: clients[:5], "5 survivors are too few to mask the report"),
        (lambda clients: (*clients, clients[-1] + 1), "names clients that the server did not ask"),
    ],
)
def test_a_list_that_hides_too_little_is_not_signed(
    reporting: Asked, choose: Callable[[tuple[int, ...]], tuple[int, ...]], reason: str
) -> None:
    listed = SurvivorList(reporting.token, choose(tuple(reporting.grid.clients)))
    with pytest.raises(MaskingError, match=reason):
        reporting.client.answer(listed.encode())


def test_a_report_is_masked_once_and_not_without_shares(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "report")
    vector = VectorReport(asked.token, asked.client_index, np.zeros(7, np.int32))
    with pytest.raises(MaskingError, match="out of turn"):
        asked.client.mask(vector)
    others = [client for client in asked.grid.clients if client != asked.client_index]
    sealed = {
        other: SealedShares.decode(asked.grid.sent["shares", other]).sealed[asked.client_index]
        for other in others
    }
    few = SealedShares(asked.token, asked.client_index, dict(list(sealed.items())[:4]))
    with pytest.raises(MaskingError, match="too few neighbours are left"):
        asked.client.answer(few.encode())
    whole = SealedShares(asked.token, asked.client_index, sealed).encode()
    asked.client.answer(whole)
    assert asked.client.mask(vector).vector.any()
    assert asked.client.answer(whole) == b""  # with a repeated instruction
    with pytest.raises(MaskingError, match="out of turn"):
        asked.client.answer(
            SealedShares(asked.token, asked.client_index, sealed | {others[0]: bytes(94)}).encode()
        )
    with pytest.raises(MaskingError, match="out of turn"):
        asked.client.mask(vector)
    with pytest.raises(MaskingError, match="this client has no keys for this round"):
        asked.client.mask(replace(vector, token=bytes(8)))


def key_list(asked: Asked, **changes: Any) -> bytes:
    keys = [
        MaskingKeys.decode(asked.grid.sent["keys", client])
        for client in asked.grid.clients
        if ("keys", client) in asked.grid.sent
    ]
    listed = KeyList(asked.token, tuple(own.client for own in keys), tuple(keys))
    return replace(listed, **changes).encode()


def test_a_list_of_keys_must_be_whole_signed_and_one(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "shares")
    good = KeyList.decode(key_list(asked))
    forged = (*good.keys[:-1], MaskingKeys.decode(resigned(good.keys[-1].encode())))
    unsigned = (*good.keys[:-1], replace(good.keys[-1], commitment=bytes(32)))
    other = asked.grid.devices[good.clients[-2]]
    twice, rewritten = (
        (*good.keys[:-1], MaskingKeys.decode(resigned_as(good.keys[-1], other, key)))
        for key in (other.public, other.public + b"\n")  # the same key as another PEM
    )
    own = (replace(good.keys[0], commitment=bytes(32)), *good.keys[1:])
    for keys, reason in (
        (unsigned, "are not signed by its device"),
        (twice, "two clients of the list have the same device key"),
        (rewritten, "two clients of the list have the same device key"),
        (own, "has keys for this client that this client has not sent"),
        (good.keys[:-1], "must have the keys of this client's neighbours and no others"),
    ):
        with pytest.raises(MaskingError, match=reason):
            asked.client.answer(replace(good, keys=keys).encode())
    few = replace(good, clients=good.clients[:2], keys=good.keys[:2])
    with pytest.raises(MaskingError, match="shorter than the run's minimum of 3"):
        asked.client.answer(few.encode())
    asked.client.answer(replace(good, keys=forged).encode())  # a device that it does not know
    with pytest.raises(MaskingError, match="a second list of keys"):
        asked.client.answer(good.encode())


def resigned_as(keys: MaskingKeys, device: Device, public_key: bytes) -> bytes:
    named = replace(keys, device_key=public_key)
    return replace(named, signature=device.sign(named.signed)).encode()


def test_frames_that_ask_for_nothing_are_refused(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "shares")
    for frame in (Refusal(bytes(8), 1, 0, 1).encode(), b"", b"SM" + bytes(40)):
        with pytest.raises(SamaraError):
            asked.client.answer(frame)
