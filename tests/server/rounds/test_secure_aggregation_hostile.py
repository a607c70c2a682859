"""Hostile clients and servers in secure aggregation: no message of theirs unmasks a client."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from masked_rounds import STAGES, Device, MaskedGrid, make_rounds

from samara.client.protocol.masking_client import MaskingClient, MaskingMemory
from samara.shared.errors import FrameError, MaskingError, SamaraError
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
from samara.shared.protocol.frames.vector_report import VectorReport
from samara.shared.protocol.secure_aggregation.keys import KEY_BYTES
from samara.shared.protocol.secure_aggregation.masks import Masked, mask_stream
from samara.shared.protocol.wire import MAX_FRAME_BYTES, kind_of, pack, unpack

TOKEN, NEXT_TOKEN = b"token 01", b"token 02"
CLIENTS = (1, 4, 9, 16, 25, 36, 49)
"""Seven clients, of whom five are more than two thirds."""
FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
"""The prime of P-256's coordinates."""
VECTOR = np.arange(1, 8, dtype=np.int32)
MUTATIONS = 40


class HostileServer:
    """A server that sends arbitrary messages to each client, with the clients of a run.

    Attributes:
        signers: device of each client, with its key.
        clients: the clients.
    """

    def __init__(self, clients: Sequence[int] = CLIENTS) -> None:
        self.signers = {client: Device() for client in clients}
        self.clients = {
            client: MaskingClient(client, device, device.memory, 3)
            for client, device in self.signers.items()
        }

    def keys(self, token: bytes = TOKEN) -> dict[int, MaskingKeys]:
        asked = KeyRequest(token).encode()
        return {c: MaskingKeys.decode(one.answer(asked)) for c, one in self.clients.items()}

    def share(
        self, keys: Mapping[int, MaskingKeys], listed: Iterable[int], to: Iterable[int]
    ) -> dict[int, SealedShares]:
        """Return the clients' sealed shares after a list of some of the keys."""
        chosen = tuple(listed)
        token = keys[chosen[0]].token
        frame = KeyList(token, chosen, tuple(keys[client] for client in chosen)).encode()
        return {c: SealedShares.decode(self.clients[c].answer(frame)) for c in to}

    def deliver(self, client: int, sent: Mapping[int, SealedShares], token: bytes = TOKEN) -> None:
        """Send a client the shares that others have sealed for it."""
        sealed = {c: own.sealed[client] for c, own in sent.items() if client in own.sealed}
        self.clients[client].answer(SealedShares(token, client, sealed).encode())

    def report(self, client: int, token: bytes = TOKEN) -> Masked:
        return self.clients[client].mask(VectorReport(token, client, VECTOR)).vector

    def sign(self, client: int, survivors: Iterable[int], token: bytes = TOKEN) -> bytes:
        frame = SurvivorList(token, tuple(survivors)).encode()
        return SurvivorSignature.decode(self.clients[client].answer(frame)).signature

    def reveal(
        self, client: int, signatures: Mapping[int, bytes], token: bytes = TOKEN
    ) -> RevealedShares:
        frame = SignatureList(token, dict(sorted(signatures.items()))).encode()
        return RevealedShares.decode(self.clients[client].answer(frame))

    def run_until_reports(self, token: bytes = TOKEN) -> dict[int, SealedShares]:
        """Run an honest round until the masked reports."""
        sent = self.share(self.keys(token), self.clients, self.clients)
        for client in self.clients:
            self.deliver(client, sent, token)
            self.report(client, token)
        return sent


def resigned(keys: MaskingKeys, device: Device) -> MaskingKeys:
    return replace(keys, signature=device.sign(keys.signed))


def mirrored(point: bytes) -> bytes:
    """The point with the same x and negated y, with which ECDH gives the same secret."""
    y = FIELD - int.from_bytes(point[33:], "big")
    return point[:33] + y.to_bytes(32, "big")


POINTS: dict[str, Callable[[bytes], bytes]] = {
    "at infinity": lambda own: bytes(KEY_BYTES),
    "origin": lambda own: b"\4" + bytes(KEY_BYTES - 1),
    "off the curve": lambda own: own[:-1] + bytes([own[-1] ^ 1]),
    "compressed": lambda own: bytes([2 + own[-1] % 2]) + own[1:33] + bytes(32),
    "hybrid": lambda own: bytes([6 + own[-1] % 2]) + own[1:],
    "beyond the field": lambda own: b"\4" + b"\xff" * (KEY_BYTES - 1),
}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("which", ["sealing_key", "mask_key"])
def test_a_key_that_is_no_point_is_refused(tmp_path: Path, name: str, which: str) -> None:
    """The server refuses the client alone, and the round continues.

    A client refuses the whole list.
    """
    server, grid = make_rounds(tmp_path, 5)
    liar = min(grid.clients)

    def spoil(keys: MaskingKeys, device: Device) -> MaskingKeys:
        return resigned(replace(keys, **{which: POINTS[name](getattr(keys, which))}), device)

    def forge(stage: str, client: int, frame: bytes) -> bytes:
        if (stage, client) != ("keys", liar):
            return frame
        return spoil(MaskingKeys.decode(frame), grid.devices[liar]).encode()

    grid.forge = forge
    made = server.run_round()
    assert list(made.refused) == [liar]
    assert made.total.clients == 4
    hostile = HostileServer()
    keys = hostile.keys()
    keys[4] = spoil(keys[4], hostile.signers[4])
    if which == "sealing_key":
        with pytest.raises(MaskingError, match="not a point on P-256"):
            hostile.share(keys, CLIENTS, [9])
    else:
        hostile.share(keys, CLIENTS, [9])
        sealed = {c: bytes(94) for c in CLIENTS if c != 9}  # they are read when it reveals
        hostile.clients[9].answer(SealedShares(TOKEN, 9, sealed).encode())
        with pytest.raises(MaskingError, match="not a point on P-256"):
            hostile.report(9)


@pytest.mark.parametrize("copy", [lambda own: own, mirrored])
def test_a_copied_key_cancels_no_mask(copy: Callable[[bytes], bytes]) -> None:
    """A client between the owner and the copier of a key adds and subtracts different masks."""
    hostile = HostileServer(CLIENTS[:3])
    before, between, after = CLIENTS[:3]
    keys = hostile.keys()
    copied = replace(keys[after], mask_key=copy(keys[before].mask_key))
    keys[after] = resigned(copied, hostile.signers[after])
    shares = hostile.share(keys, keys, [between])
    sealed = {c: bytes(94) for c in (before, after)}  # a client reads them only when it reveals
    hostile.clients[between].answer(SealedShares(TOKEN, between, sealed).encode())
    seed = hostile.signers[between].memory.read_masking().seed
    masked = hostile.report(between)
    assert shares
    assert (masked - mask_stream(seed, len(VECTOR)) != VECTOR.astype(np.uint64)).all()


def test_clients_with_different_lists_of_clients_reveal_nothing_of_each_other() -> None:
    """Neither client can read the other's shares, and the other's signature does not count."""
    hostile = HostileServer()
    keys, apart, many = hostile.keys(), CLIENTS[0], CLIENTS[:-1]
    sent = hostile.share(keys, many, [apart]) | hostile.share(keys, CLIENTS, CLIENTS[1:])
    for client in CLIENTS:
        others = {c: own for c, own in sent.items() if c in many or client != apart}
        hostile.deliver(client, others)
        hostile.report(client)
    signatures = {client: hostile.sign(client, many) for client in many}
    with pytest.raises(MaskingError, match=r"client \d+ has not signed this list"):
        hostile.reveal(apart, signatures)
    del signatures[apart]
    revealed = [hostile.reveal(client, signatures) for client in many[1:]]
    assert all(apart not in {*shares.seeds, *shares.keys} for shares in revealed)
    assert all(many[1] in shares.seeds for shares in revealed)


def test_of_two_lists_of_survivors_neither_is_revealed() -> None:
    hostile = HostileServer()
    hostile.run_until_reports()
    lists = {c: CLIENTS if c < 10 else CLIENTS[1:] for c in CLIENTS}
    signatures = {client: hostile.sign(client, listed) for client, listed in lists.items()}
    for client, listed in lists.items():
        same = {c: own for c, own in signatures.items() if lists[c] == listed}
        with pytest.raises(MaskingError, match="too few neighbours have signed"):
            hostile.reveal(client, same)
        with pytest.raises(MaskingError, match=r"has not signed this list|too few neighbours"):
            hostile.reveal(client, signatures)
        with pytest.raises(MaskingError, match="before the masked report, or twice"):
            hostile.sign(client, lists[CLIENTS[0] if client > 10 else CLIENTS[-1]])


def test_a_client_gives_one_of_two_shares_of_a_peer_whatever_it_is_asked() -> None:
    hostile = HostileServer()
    sent = hostile.run_until_reports()
    asked, stayed = CLIENTS[0], CLIENTS[:-1]
    signatures = {client: hostile.sign(client, stayed) for client in stayed}
    revealed = hostile.reveal(asked, signatures)
    assert not revealed.seeds.keys() & revealed.keys.keys()
    assert {*revealed.seeds, *revealed.keys} == set(CLIENTS)
    frames = [SurvivorList(TOKEN, CLIENTS).encode(), SurvivorList(TOKEN, stayed).encode()]
    frames += [SignatureList(TOKEN, signatures).encode(), KeyRequest(TOKEN).encode()]
    sealed = {c: own.sealed[asked] for c, own in sent.items() if c != asked}
    frames += [SealedShares(TOKEN, asked, sealed).encode()]
    for frame in frames:
        with pytest.raises(MaskingError):
            hostile.clients[asked].answer(frame)
    kept = hostile.signers[asked].memory.read_masking().to_bytes()
    assert {name for name, value in kept.items() if value} == {"token", "rules"}
    both = replace(revealed, keys={CLIENTS[1]: bytes(33)} | revealed.keys)
    with pytest.raises(FrameError, match="each once"):
        RevealedShares.decode(both.encode())


def test_a_token_after_a_restart_has_nothing_of_the_masks_before() -> None:
    hostile = HostileServer()
    sent, asked = hostile.run_until_reports(), CLIENTS[0]
    device = hostile.signers[asked]
    keys = {
        c: MaskingKeys.decode(one.memory.read_masking().keys) for c, one in hostile.signers.items()
    }
    device.memory = MaskingMemory()
    again = hostile.clients[asked] = MaskingClient(asked, device, device.memory, 3)
    for use in (
        lambda: hostile.sign(asked, CLIENTS),
        lambda: hostile.report(asked),
        lambda: hostile.share(keys, CLIENTS, [asked]),
        lambda: hostile.deliver(asked, sent),
    ):
        with pytest.raises(MaskingError, match="this client has no keys for this round"):
            use()
    fresh = MaskingKeys.decode(again.answer(KeyRequest(TOKEN).encode()))
    for name in ("sealing_key", "mask_key", "commitment"):
        assert getattr(fresh, name) != getattr(keys[asked], name)
    with pytest.raises(
        MaskingError, match="has keys for this client that this client has not sent"
    ):
        hostile.share(keys, CLIENTS, [asked])


@pytest.mark.parametrize("rules", [(5, 0), (3, 3)])
def test_keys_of_a_run_mask_no_report_of_another(rules: tuple[int, int]) -> None:
    """Keys made for a run with a smaller `cohort.minimum` mask no report of a stricter run."""
    hostile, asked = HostileServer(), CLIENTS[0]
    sent = hostile.share(hostile.keys(), CLIENTS, CLIENTS)
    hostile.deliver(asked, sent)
    device, lax = hostile.signers[asked], hostile.clients[asked]
    hostile.clients[asked] = MaskingClient(asked, device, device.memory, *rules)
    for use in (
        lambda: hostile.report(asked),
        lambda: hostile.deliver(asked, sent),
        lambda: hostile.sign(asked, CLIENTS),
    ):
        with pytest.raises(MaskingError, match="this client has no keys for this round"):
            use()
    hostile.clients[asked] = lax
    assert hostile.report(asked).any()


def test_what_another_round_had_is_of_no_use() -> None:
    """Every frame of a round is repeated in the next round, unchanged or with the new token."""
    hostile = HostileServer()
    sent, asked = hostile.run_until_reports(), CLIENTS[0]
    old_keys = {c: one.memory.read_masking().key_list for c, one in hostile.signers.items()}
    signatures = {client: hostile.sign(client, CLIENTS) for client in CLIENTS}
    keys = hostile.keys(NEXT_TOKEN)
    replayed = [old_keys[asked], SurvivorList(TOKEN, CLIENTS).encode()]
    replayed += [SignatureList(TOKEN, signatures).encode()]
    replayed += [
        SealedShares(TOKEN, asked, {c: sent[c].sealed[asked] for c in CLIENTS[1:]}).encode()
    ]
    for frame in replayed:
        with pytest.raises(MaskingError, match="this client has no keys for this round"):
            hostile.clients[asked].answer(frame)
    fresh = hostile.share(keys, CLIENTS, CLIENTS)
    for client in CLIENTS:
        mixed = fresh if client != asked else {**sent, CLIENTS[1]: fresh[CLIENTS[1]]}
        hostile.deliver(client, mixed, NEXT_TOKEN)
        hostile.report(client, NEXT_TOKEN)
    signed = {client: hostile.sign(client, CLIENTS, NEXT_TOKEN) for client in CLIENTS}
    with pytest.raises(MaskingError, match="has not signed this list of survivors"):
        hostile.reveal(asked, signatures, NEXT_TOKEN)
    revealed = hostile.reveal(asked, signed, NEXT_TOKEN)
    assert revealed.seeds.keys() == {asked, CLIENTS[1]}
    assert not revealed.keys


def test_shares_under_another_name_are_not_read() -> None:
    """A client gets its own shares back, and two neighbours' shares are exchanged."""
    hostile = HostileServer()
    sent, asked = hostile.share(hostile.keys(), CLIENTS, CLIENTS), CLIENTS[0]
    one, other, mirror, *rest = CLIENTS[1:]
    sealed = {one: sent[other].sealed[asked], other: sent[one].sealed[asked]}
    sealed |= {mirror: sent[asked].sealed[mirror]} | {c: sent[c].sealed[asked] for c in rest}
    hostile.clients[asked].answer(SealedShares(TOKEN, asked, sealed).encode())
    hostile.report(asked)
    for client in CLIENTS[1:]:
        hostile.deliver(client, sent)
        hostile.report(client)
    signatures = {client: hostile.sign(client, CLIENTS) for client in CLIENTS}
    assert hostile.reveal(asked, signatures).seeds.keys() == {asked, *rest}


def test_a_list_has_each_client_once() -> None:
    twice = SealedShares(TOKEN, 1, {4: bytes(94), 9: bytes(94)}).encode()
    body = bytes(unpack(twice, kind_of(twice)))
    entry = 4 + 94
    for doubled in (body[:-entry] + body[-2 * entry : -entry], body[:-entry] + bytes(entry)):
        with pytest.raises(FrameError, match="ascending order, each once"):
            SealedShares.decode(pack(kind_of(twice), doubled))


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Return a frame with a valid checksum, whose body is cut, longer or altered."""
    body = bytearray(unpack(frame, kind_of(frame)))
    match rng.randrange(4):
        case 0:
            del body[rng.randrange(len(body)) :]
        case 1:
            body += rng.randbytes(rng.randint(1, 100))
        case 2:
            at = rng.randrange(len(body))
            body[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\1\0\0\0"))
        case _:
            body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    return pack(kind_of(frame), bytes(body))


def test_no_mutated_frame_is_more_than_refused_by_a_client() -> None:
    hostile, rng = HostileServer(), random.Random(0)
    sent, asked = hostile.run_until_reports(), CLIENTS[0]
    state = hostile.signers[asked].memory.read_masking()
    survivors = SurvivorList(TOKEN, CLIENTS)
    signatures = {client: hostile.sign(client, CLIENTS) for client in CLIENTS[1:]}
    sealed = {c: own.sealed[asked] for c, own in sent.items() if c != asked}
    steps: Sequence[tuple[bytes, dict[str, bytes]]] = (
        (state.key_list, {"key_list": b"", "received": b"", "is_masked": b""}),
        (SealedShares(TOKEN, asked, sealed).encode(), {"received": b"", "is_masked": b""}),
        (survivors.encode(), {}),
        (SignatureList(TOKEN, signatures).encode(), {"survivors": survivors.encode()}),
    )
    refused = 0
    for frame, changes in steps:
        for _ in range(MUTATIONS):
            hostile.signers[asked].memory.write_masking(replace(state, **changes))
            try:
                hostile.clients[asked].answer(mutated(frame, rng))
            except SamaraError:
                refused += 1
    assert refused > 2 * MUTATIONS


def unchanged(stage: str, client: int, frame: bytes) -> bytes:
    return frame


def changed_at(grid: MaskedGrid, at: str, liar: int, rng: random.Random) -> None:
    grid.forge = lambda stage, client, frame: (
        mutated(frame, rng) if (stage, client) == (at, liar) else frame
    )


@pytest.mark.parametrize("stage", STAGES)
def test_a_mutated_answer_leads_to_a_right_sum_or_to_none(tmp_path: Path, stage: str) -> None:
    """The numbers of a masked report are an exception: nobody can check them."""
    server, grid = make_rounds(tmp_path, 5)
    rng, sums = random.Random(STAGES.index(stage)), 0
    for number in range(1, MUTATIONS // 2 + 1):
        liar = rng.choice(list(grid.clients))
        changed_at(grid, stage, liar, rng)
        made = server.run_round(number)
        if not made.total.problem and (stage != "report" or liar not in made.reporting):
            vectors = [grid.vectors[client] for client in made.reporting]
            expected = np.sum(vectors, axis=0, dtype=np.int64)
            assert made.total.sums[0].numbers.tolist() == expected.tolist()
            sums += 1
    assert sums >= MUTATIONS // 4
    grid.forge = unchanged
    assert not server.run_round(MUTATIONS).total.problem


def test_a_false_commitment_abandons_the_round_and_no_other(tmp_path: Path) -> None:
    server, grid = make_rounds(tmp_path, 5)
    liar = min(grid.clients)

    def forge(stage: str, client: int, frame: bytes) -> bytes:
        if (stage, client) != ("keys", liar):
            return frame
        keys = replace(MaskingKeys.decode(frame), commitment=bytes(32))
        own = grid.devices[liar].memory
        made = resigned(keys, grid.devices[liar]).encode()
        own.write_masking(replace(own.read_masking(), keys=made))
        return made

    grid.forge = forge
    assert f"do not recover the secret of client {liar}" in server.run_round(1).total.problem
    grid.leaves = {liar: "keys"}
    assert server.run_round(2).total.clients == 4


def test_an_endless_list_is_refused_unread() -> None:
    listed = SurvivorList(TOKEN, CLIENTS).encode()
    body = bytearray(unpack(listed, kind_of(listed)))
    body[8:12] = b"\xff" * 4
    with pytest.raises(FrameError, match="out of range"):
        SurvivorList.decode(pack(kind_of(listed), bytes(body)))
    with pytest.raises(FrameError):
        kind_of(bytes(MAX_FRAME_BYTES + 1))
