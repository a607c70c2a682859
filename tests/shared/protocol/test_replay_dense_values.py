"""Dense values: only private tracks may have them; malformed dense values are refused by name."""

import hashlib
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import RUN_ID, delta_of, layout_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from samara.client.protocol.session import Session
from samara.shared.errors import CatchUpError, FrameError, LedgerError, ReplayError
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.personal_file import FitFile, read_personal_file
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.records import CatchUp, LedgerHeader, Record
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import (
    MAX_DENSE_VALUE,
    DenseValues,
    check_fits,
    digest,
    replay,
    zero_state,
)
from samara.shared.protocol.round_delta import RoundDelta, revert_delta
from samara.shared.protocol.wire import MAX_SCALARS, Kind, pack, unpack

LAYOUT = layout_of()
HEADER = LedgerHeader(PERSONAL_TRACK, RUN_ID, LAYOUT.hash)
GLOBAL = LedgerHeader(0, RUN_ID, LAYOUT.hash)
FITTED_TO = bytes(range(32))
ENTRY = 24
"""Offset of the first entry in the body of a round delta without contributors."""
WIDEST = MAX_DENSE_VALUE // 2
"""A value so large that the sum of two parts would leave the range."""
PARTS = (
    DenseValues(0, np.array([5, -7, WIDEST])),
    DenseValues(18, np.array([-WIDEST, 1])),
)


def fit_of(track: int = PERSONAL_TRACK, parts: tuple[DenseValues, ...] = PARTS) -> RoundDelta:
    return RoundDelta(1, track, bytes(8), (), parts)


def record_of(delta: RoundDelta, header: LedgerHeader = HEADER) -> Record:
    state = replay(zero_state(LAYOUT.size), delta.scalar_groups(), LAYOUT.distribution)
    return Record.create(header.start, delta, digest(LAYOUT.hash, state))


def expected_state() -> NDArray[np.int64]:
    state = zero_state(LAYOUT.size)
    state[:3], state[18:] = PARTS[0].values, PARTS[1].values
    return state


def file() -> FitFile:
    return FitFile.from_records(HEADER, [record_of(fit_of())], 3, FITTED_TO)


@pytest.mark.parametrize("track", [0, 1, 2**32 - 2])
def test_no_other_track_may_hold_them(track: int, tmp_path: Path) -> None:
    with pytest.raises(FrameError, match=f"round delta of track {track}; only private tracks"):
        RoundDelta.decode(fit_of(track).encode())
    header = LedgerHeader(track, RUN_ID, LAYOUT.hash)
    with closing(Ledger(tmp_path, header, LAYOUT, 0)) as ledger:
        with pytest.raises(
            LedgerError,
            match="only private tracks may hold dense values other than the label bias alone",
        ):
            ledger.append(fit_of(track))
        assert ledger.position == header.start


@pytest.mark.parametrize(
    ("track", "message"), [(0, "only private tracks"), (PERSONAL_TRACK, "not 0")]
)
def test_a_server_cannot_send_them_to_a_client(track: int, message: str) -> None:
    record = record_of(fit_of(track), GLOBAL)
    session = Session.begin(GLOBAL, LAYOUT)
    with pytest.raises(CatchUpError, match=message):
        session.catch_up(CatchUp(tail=record.encode()), GLOBAL, LAYOUT, 1, record.end_digest)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (5, "<I", 0, "an entry of 0 dense values"),
        (5, "<I", MAX_SCALARS + 1, "dense values is out of range"),
        (5, "<I", 400, "truncated"),
        (5, "<I", 2, "out of range|truncated|follow"),
        (9, "<q", MAX_DENSE_VALUE + 1, "a dense value is beyond"),
        (9, "<q", -MAX_DENSE_VALUE - 1, "a dense value is beyond"),
        (9, "<q", -(2**63), "a dense value is beyond"),
    ],
)
def test_malformed_ones_are_refused(offset: int, layout: str, value: int, message: str) -> None:
    body = bytearray(unpack(fit_of(parts=PARTS[:1]).encode(), Kind.ROUND_DELTA))
    struct.pack_into(layout, body, ENTRY + offset, value)
    with pytest.raises(FrameError, match=message):
        RoundDelta.decode(pack(Kind.ROUND_DELTA, bytes(body)))


@pytest.mark.parametrize("first", [18, 20, 2**32 - 1])
def test_values_outside_the_state_are_refused_and_change_nothing(
    first: int, tmp_path: Path
) -> None:
    outside = fit_of(parts=(DenseValues(first, np.array([1, 2, 3])),))
    with closing(Ledger(tmp_path, HEADER, LAYOUT, 0)) as ledger:
        with pytest.raises(ReplayError, match=f"from element {first} on are outside the state"):
            ledger.append(outside)
        assert not ledger.state.any()
    # A file that holds them all the same, with sound hashes, is refused when it is opened.
    record = Record.create(HEADER.start, outside, bytes(32)).encode()
    with (tmp_path / "0000000001.seg").open("ab") as segment:
        segment.write(record)
    with pytest.raises(LedgerError, match="outside the state"):
        Ledger(tmp_path, HEADER, LAYOUT, 0)
    with pytest.raises(LedgerError, match="outside the state"):
        list(verify_ledger(tmp_path, LAYOUT))


def test_values_that_leave_the_exact_range_are_refused() -> None:
    full = np.full(3, 2**62 - 1 - WIDEST)
    check_fits(full, [PARTS[0]])
    with pytest.raises(ReplayError, match="does not fit"):
        check_fits(full + 1, [PARTS[0]])


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1024.001, -1e30])
def test_numbers_that_have_no_value_are_refused(number: float) -> None:
    with pytest.raises(ReplayError, match="a private value of"):
        DenseValues.from_numbers(0, np.array([0.5, number]))


def test_a_round_with_them_is_not_reverted_by_scalars() -> None:
    with pytest.raises(ReplayError, match="dense values cannot be reverted"):
        revert_delta(2, PERSONAL_TRACK, bytes(8), [fit_of()])


@pytest.mark.parametrize("every", [0, 1])
def test_a_private_ledger_keeps_them(tmp_path: Path, every: int) -> None:
    with closing(Ledger(tmp_path, HEADER, LAYOUT, every)) as ledger:
        ledger.append(fit_of())
    with closing(Ledger(tmp_path, HEADER, LAYOUT, every)) as ledger:
        np.testing.assert_array_equal(ledger.state, expected_state())
        ledger.append(replace(delta_of(2), track=PERSONAL_TRACK))
    *_, last = verify_ledger(tmp_path, LAYOUT)
    entries = delta_of(2).scalar_groups()
    np.testing.assert_array_equal(last.state, replay(expected_state(), entries, "gaussian"))
    first, _ = read_ledger(tmp_path, strict=True)
    assert first.delta.encode() == fit_of().encode()


def test_a_file_of_a_fit_is_its_state() -> None:
    data = file().encode()
    assert len(data) == 158 + 8 * 2 + 8 * 5
    read = read_personal_file(data)
    assert isinstance(read, FitFile)
    assert (read.header, read.client, read.global_digest) == (HEADER, 3, FITTED_TO)
    np.testing.assert_array_equal(read.state(LAYOUT), expected_state())
    assert read.encode() == data


WIDE = st.integers(-MAX_DENSE_VALUE, MAX_DENSE_VALUE)


@given(st.integers(0, 16), hnp.arrays(np.int64, st.integers(1, 4), elements=WIDE))
def test_a_file_leads_where_its_record_leads(first: int, values: NDArray[np.int64]) -> None:
    record = record_of(fit_of(parts=(DenseValues(first, values),)))
    read = read_personal_file(FitFile.from_records(HEADER, [record], 3, FITTED_TO).encode())
    np.testing.assert_array_equal(read.state(LAYOUT)[first : first + len(values)], values)
    assert digest(LAYOUT.hash, read.state(LAYOUT)) == record.end_digest


def test_any_flipped_byte_and_any_cut_of_a_file_is_found() -> None:
    data = file().encode()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(LedgerError):
            read_personal_file(bytes(damaged))
        with pytest.raises(LedgerError):
            read_personal_file(data[:place])


@pytest.mark.parametrize(
    ("offset", "layout", "value", "message"),
    [
        (8, "<H", 9, "version 9"),
        (124, "<H", 3, "truncated"),
        (124, "<H", 1, "follow the end"),
        (130, "<I", 0, "an entry of 0 dense values"),
        (134, "<q", -(2**63), "a dense value is beyond"),
        (134, "<q", 6, "the digest of the file's values is not"),
        (126, "<I", 19, "outside the state"),
        (126, "<I", 1, "the digest of the file's values is not"),
    ],
)
def test_a_sealed_file_of_nonsense_is_refused(
    offset: int, layout: str, value: int, message: str
) -> None:
    data = bytearray(file().encode())
    struct.pack_into(layout, data, offset, value)
    sealed = bytes(data[:-32]) + hashlib.sha256(data[:-32]).digest()
    with pytest.raises((LedgerError, ReplayError), match=message):
        read_personal_file(sealed).state(LAYOUT)


def test_a_file_of_another_layout_or_of_private_rounds_is_refused() -> None:
    with pytest.raises(LedgerError, match="another layout"):
        file().state(layout_of(30))
    record = record_of(replace(delta_of(1), track=PERSONAL_TRACK))
    with pytest.raises(LedgerError, match="round 1 is not a private fit"):
        FitFile.from_records(HEADER, [record], 3, FITTED_TO)
