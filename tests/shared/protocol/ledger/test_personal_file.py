"""Private rounds in one file: its size, its bytes, and the same final state as the ledger's."""

import hashlib
import struct

import numpy as np
import pytest
from helpers import RUN_ID, layout_of
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.shared.errors import LedgerError
from samara.shared.protocol.directions import round_root
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.ledger.personal_file import PersonalFile
from samara.shared.protocol.ledger.records import LedgerHeader, Position, Record
from samara.shared.protocol.replay import CoefficientBlock, digest, replay, zero_state
from samara.shared.protocol.round_delta import DerivedSeeds, Group, RoundDelta

LAYOUT = layout_of()
HEADER = LedgerHeader(PERSONAL_TRACK, RUN_ID, LAYOUT.hash)
SEED, CLIENT, STARTED = 5, 3, bytes(range(32))


def records(rounds: int, steps: int, queries: int, first: int = 1) -> list[Record]:
    rng = np.random.default_rng(rounds)
    state, position, found = zero_state(LAYOUT.size), HEADER.start, []
    for number in range(first, first + rounds):
        root = round_root(SEED, number, PERSONAL_TRACK)
        source = DerivedSeeds(root, CLIENT + 1, steps, queries)
        scalars = rng.integers(-(2**31) + 1, 2**31, steps * queries).astype(np.int32)
        group = Group(number, source, CoefficientBlock(number % 4, scalars))
        delta = RoundDelta(number, PERSONAL_TRACK, bytes(8), (), (group,))
        state = replay(state, delta.scalar_groups(), LAYOUT.distribution)
        before = Position(number - 1, position.head)
        found.append(Record.create(before, delta, digest(LAYOUT.hash, state)))
        position = found[-1].position
    return found


def file_of(rounds: int = 5, steps: int = 2, queries: int = 4) -> PersonalFile:
    return PersonalFile.from_records(HEADER, records(rounds, steps, queries), SEED, CLIENT, STARTED)


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 4))
def test_it_leads_where_the_ledger_leads(rounds: int, steps: int, queries: int) -> None:
    kept = records(rounds, steps, queries)
    read = PersonalFile.decode(
        PersonalFile.from_records(HEADER, kept, SEED, CLIENT, STARTED).encode()
    )
    state = zero_state(LAYOUT.size)
    for record in kept:
        state = replay(state, record.delta.scalar_groups(), LAYOUT.distribution)
    np.testing.assert_array_equal(read.state(LAYOUT), state)
    assert (read.header, read.global_digest, read.client) == (HEADER, STARTED, CLIENT)


@pytest.mark.parametrize(("rounds", "steps", "queries"), [(1, 1, 1), (5, 2, 16), (552, 1, 1)])
def test_it_is_as_small_as_is_said(rounds: int, steps: int, queries: int) -> None:
    size = len(file_of(rounds, steps, queries).encode())
    scalars = rounds * steps * queries
    assert size == 4 * scalars + 174 + (rounds + 1) // 2
    assert size <= 4 * scalars + 512


def test_the_bytes_are_these() -> None:
    """The expected bytes were computed by hand from docs/reference/ledger.md."""
    data = file_of(3).encode()
    assert data[:8] == b"SAMARAPB"
    assert data[16:24] == RUN_ID
    assert struct.unpack_from("<QIIHH", data, 56) == (SEED, CLIENT, 3, 2, 4)
    assert data[76:108] == STARTED
    assert data[140:144] == bytes([0, 0, 1 | 2 << 4, 3])
    coefficients = np.concatenate(
        [r.delta.groups[0].scalars.coefficients for r in records(3, 2, 4)]
    )
    assert data[144:-32] == coefficients.astype("<i4").tobytes()
    assert data[-32:] == hashlib.sha256(data[:-32]).digest()


def test_any_flipped_byte_and_any_cut_is_found() -> None:
    data = file_of(2, 1, 2).encode()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(LedgerError):
            PersonalFile.decode(bytes(damaged))
        with pytest.raises(LedgerError):
            PersonalFile.decode(data[:place])


def _sealed(data: bytearray) -> bytes:
    return bytes(data[:-32]) + hashlib.sha256(data[:-32]).digest()


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (68, "<I", 2**32 - 1, "the file's length does not match its fields"),
        (68, "<I", 0, "the file's length does not match its fields"),
        (74, "<H", 0, "the file's length does not match its fields"),
        (142, "<B", 0xFF, "a shift is out of range"),
        (140, "<B", 63, "a shrink is out of range"),
        (141, "<B", 9, "the file's length does not match its fields"),
        (8, "<H", 9, "version 9"),
    ],
)
def test_sealed_nonsense_is_refused(offset: int, layout: str, value: int, message: str) -> None:
    data = bytearray(file_of().encode())
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(LedgerError, match=message):
        PersonalFile.decode(_sealed(data))


@pytest.mark.parametrize(
    ("offset", "message"), [(56, "digest"), (64, "digest"), (148, "digest"), (140, "digest")]
)
def test_other_scalars_or_seeds_lead_elsewhere(offset: int, message: str) -> None:
    data = bytearray(file_of().encode())
    data[offset] ^= 1
    with pytest.raises(LedgerError, match="digest"):
        PersonalFile.decode(_sealed(data)).state(LAYOUT)


def test_another_layout_is_refused() -> None:
    with pytest.raises(LedgerError, match="another layout"):
        file_of().state(layout_of(30))


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(LedgerError, match="no private round"):
        PersonalFile.from_records(HEADER, [], SEED, CLIENT, STARTED)
    with pytest.raises(LedgerError, match=r"round 4 does not follow.*snapshot"):
        PersonalFile.from_records(HEADER, records(2, 1, 2, first=4), SEED, CLIENT, STARTED)
    empty = Record.create(HEADER.start, RoundDelta(1, PERSONAL_TRACK, bytes(8), (), ()), bytes(32))
    with pytest.raises(LedgerError, match="round 1 does not consist of one group"):
        PersonalFile.from_records(HEADER, [empty], SEED, CLIENT, STARTED)
