"""The bytes of records and segment headers."""

import io
from dataclasses import replace

import pytest
from helpers import delta_of, history_of, layout_of

from samara.shared.errors import LedgerError
from samara.shared.protocol.ledger.records import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_VERSION,
    LedgerHeader,
    Position,
    Record,
    TornRecordError,
    encode_segment_header,
    read_record,
    read_records,
    read_segment_header,
    skip_records,
)
from samara.shared.protocol.round_delta import Contributor

LAYOUT = layout_of()
HISTORY = history_of([delta_of(n) for n in (1, 2, 3)], LAYOUT)
RECORDS = [HISTORY.kept(n, n + 1) for n in range(3)]


def read_all(data: bytes, start: Position = HISTORY.header.start) -> list[Record]:
    return list(read_records(io.BytesIO(data), start, HISTORY.header.track))


def flipped_bits(data: bytes) -> list[tuple[int, bytes]]:
    def flipped(bit: int) -> bytes:
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]

    return [(bit // 8, flipped(bit)) for bit in range(8 * len(data))]


def test_records_read_back_and_lead_to_their_positions() -> None:
    read = read_all(HISTORY.kept(0))
    assert [record.encode() for record in read] == RECORDS
    assert [record.size for record in read] == [len(record) for record in RECORDS]
    assert [record.delta.encode() for record in read] == [d.encode() for d in HISTORY.deltas]
    assert [record.end_digest for record in read] == list(HISTORY.digests[1:])
    assert [record.position for record in read] == [HISTORY.position(n) for n in (1, 2, 3)]


def test_what_a_client_gets_names_nobody_and_continues_the_chain() -> None:
    sent = read_all(HISTORY.tail(0))
    assert [record.encode() for record in sent] == list(HISTORY.records)
    assert not any(record.delta.contributors for record in sent)
    assert [record.position for record in sent] == [HISTORY.position(n) for n in (1, 2, 3)]
    for record, delta in zip(sent, HISTORY.deltas, strict=True):
        assert [e.scalars for e in record.delta.groups] != []
        assert record.delta.token != delta.token
        assert (
            record.delta.with_contributors(delta.encode_contributors()).encode() == delta.encode()
        )


def test_contributors_cannot_be_left_out_added_or_exchanged() -> None:
    """The token in the hash chain covers the contributors."""
    first = read_all(HISTORY.kept(0))[0]
    others = replace(first.delta, contributors=(Contributor(1, 10, 2),))
    forged = replace(first, contributors=others.encode_contributors())
    with pytest.raises(LedgerError, match="round 1: the contributors are not those"):
        read_all(forged.encode())
    without = Record.create(HISTORY.header.start, replace(first.delta, contributors=()), bytes(32))
    with pytest.raises(LedgerError, match="round 1: the contributors are not those"):
        read_all(replace(without, contributors=first.contributors).encode())
    twice = first.encode()[: -len(first.sent())] + first.encode()
    with pytest.raises(LedgerError, match="round 1: contributors are not followed by their record"):
        read_all(twice)


def test_any_flipped_bit_of_a_record_is_found_and_its_round_named() -> None:
    for byte, damaged in flipped_bits(HISTORY.kept(0)):
        place = sum(SEGMENT_HEADER_BYTES + byte >= size for size in HISTORY.sizes)
        with pytest.raises(LedgerError, match=f"round {place}:"):
            read_all(damaged)


def test_records_that_end_anywhere_inside_one_are_torn() -> None:
    whole = {size - SEGMENT_HEADER_BYTES for size in HISTORY.sizes}
    for size in set(range(len(HISTORY.kept(0)))) - whole:
        with pytest.raises(TornRecordError, match="ends inside the record"):
            read_all(HISTORY.kept(0)[:size])


def test_records_out_of_their_order_are_refused() -> None:
    first, second, third = RECORDS
    for order, place in [
        ((second, first, third), 1),
        ((first, third, second), 2),
        ((first, third), 2),
        ((first, first), 2),
    ]:
        with pytest.raises(LedgerError, match=f"round {place}:"):
            read_all(b"".join(order))


def test_a_record_that_names_another_round_than_its_place_is_refused() -> None:
    record = Record.create(Position(4, HISTORY.position(1).head), delta_of(5), bytes(32))
    with pytest.raises(LedgerError, match="round 2: the record says it is round 5"):
        read_all(RECORDS[0] + record.encode())


def test_records_of_another_track_are_refused() -> None:
    with pytest.raises(LedgerError, match="round 1: the record is of track 0, not 3"):
        list(read_records(io.BytesIO(HISTORY.kept(0)), HISTORY.header.start, 3))


def test_records_of_another_run_do_not_continue_the_chain() -> None:
    other = LedgerHeader(0, b"another!", LAYOUT.hash)
    with pytest.raises(LedgerError, match=r"round 1: .* does not follow"):
        read_all(HISTORY.kept(0), other.start)


@pytest.mark.parametrize("wrong", [1, 3, 4])
def test_only_the_next_round_can_be_made_a_record(wrong: int) -> None:
    with pytest.raises(LedgerError, match=f"round {wrong} does not follow round 1"):
        Record.create(HISTORY.position(1), delta_of(wrong), bytes(32))


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_skipping_records_leads_where_reading_them_does(number: int) -> None:
    stream = io.BytesIO(HISTORY.kept(0))
    position = skip_records(stream, HISTORY.header.start, number)
    assert position == HISTORY.position(number)
    following = read_record(stream, position, HISTORY.header.track)
    assert (following.delta.round if following else 4) == number + 1


def test_skipping_more_records_than_there_are_is_an_error() -> None:
    with pytest.raises(LedgerError, match="the segment ends before round 4"):
        skip_records(io.BytesIO(HISTORY.kept(0)), HISTORY.header.start, 4)
    for size in range(1, len(RECORDS[0])):
        with pytest.raises(LedgerError, match="round 1"):
            skip_records(io.BytesIO(RECORDS[0][:size]), HISTORY.header.start, 1)


@pytest.mark.parametrize("number", [0, 2])
def test_a_segments_header_reads_back(number: int) -> None:
    data = encode_segment_header(HISTORY.header, HISTORY.position(number))
    assert len(data) == SEGMENT_HEADER_BYTES
    assert read_segment_header(io.BytesIO(data)) == (
        HISTORY.header,
        HISTORY.position(number),
        SEGMENT_VERSION,
    )


def test_any_flipped_bit_or_missing_byte_of_a_segments_header_is_found() -> None:
    data = encode_segment_header(HISTORY.header, HISTORY.position(2))
    damaged = [flipped for _, flipped in flipped_bits(data)]
    for wrong in damaged + [data[:size] for size in range(len(data))]:
        with pytest.raises(LedgerError, match="header is damaged"):
            read_segment_header(io.BytesIO(wrong))


def test_the_first_segment_starts_the_chain_of_its_own_ledger() -> None:
    wrong = replace(HISTORY.header.start, head=bytes(32))
    with pytest.raises(LedgerError, match="starts at round 0, but its chain hash"):
        read_segment_header(io.BytesIO(encode_segment_header(HISTORY.header, wrong)))
