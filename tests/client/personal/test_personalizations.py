"""The files of personalizations after crashes between their writes, and damaged files."""

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers import layout_of

from samara.client.personal.personalizations import (
    PERSONALIZATIONS_FILE,
    Personalizations,
    Score,
    StartState,
    describe_personalizations,
    read_personalizations,
)
from samara.shared.errors import LedgerError
from samara.shared.protocol.replay import digest

LAYOUT = layout_of(8)


def start(number: int, first: int = 0, data: str = "") -> StartState:
    state = np.full(LAYOUT.size, number, np.int64)
    before = Score(0.5, 0.7, 10) if first else None
    return StartState(number, state, digest(LAYOUT.hash, state), first, data, before)


def files(folder: Path) -> Personalizations:
    return Personalizations(folder, LAYOUT)


def test_a_start_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = files(tmp_path / "new")
    assert (kept.begun, kept.next, kept.finished, kept.latest) == (None, None, None, None)
    assert not kept.has_unfinished
    kept.write_next(start(5))
    assert kept.has_unfinished
    kept.begin(start(5, 1, "ab"))
    begun = files(tmp_path / "new").begun
    assert begun is not None
    assert begun.encode() == start(5, 1, "ab").encode()
    assert kept.next is None
    kept.write_next(start(9))
    latest = kept.latest
    assert latest is not None
    assert (latest.round, latest.data) == (9, "")


def test_what_is_finished_is_a_line(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.begin(start(5, 1, "ab"))
    kept.finish(start(5, 1, "ab"), 3, bytes(32), Score(0.75, 0.5, 8))
    (one,) = read_personalizations(tmp_path)
    assert (one.global_round, one.first, one.last, one.data) == (5, 1, 3, "ab")
    assert (one.before, one.after) == (Score(0.5, 0.7, 10), Score(0.75, 0.5, 8))
    assert not kept.has_unfinished
    latest = kept.latest
    assert latest is not None
    assert latest.digest == start(5).digest


def test_a_crash_after_the_line_finishes_nothing_twice(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.begin(start(5, 1))
    content = (tmp_path / "personalization").read_bytes()
    kept.finish(start(5, 1), 3, bytes(32), None)
    (tmp_path / "personalization").write_bytes(content)
    assert files(tmp_path).begun is None
    assert not files(tmp_path).has_unfinished


def test_a_crash_after_beginning_begins_nothing_twice(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.write_next(start(5))
    content = (tmp_path / "personalization.next").read_bytes()
    kept.begin(start(5, 1))
    (tmp_path / "personalization.next").write_bytes(content)
    assert files(tmp_path).begun is not None
    assert files(tmp_path).next is None


def test_half_a_line_is_cut_off_and_written_again(tmp_path: Path) -> None:
    kept = files(tmp_path)
    kept.begin(start(5, 1))
    (tmp_path / PERSONALIZATIONS_FILE).write_text('{"global_round": 5, "fir')
    assert read_personalizations(tmp_path) == []
    assert files(tmp_path).begun is not None
    kept.finish(start(5, 1), 3, bytes(32), None)
    assert [one.last for one in read_personalizations(tmp_path)] == [3]


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"no json\n", b"[]\n12345678"])
def test_a_damaged_start_is_left_out_and_said(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "personalization").write_bytes(damage)
    with caplog.at_level(logging.WARNING, "samara.client"):
        assert files(tmp_path).begun is None
    assert "the private rounds from this state are left out" in caplog.text
    assert not files(tmp_path).has_unfinished


def test_a_start_of_another_state_is_damaged() -> None:
    data = bytearray(start(5).encode())
    data[-1] ^= 1
    with pytest.raises(LedgerError, match="the digest of its numbers differs"):
        StartState.decode(bytes(data), LAYOUT)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LedgerError, match="cannot be written"):
        files(tmp_path / "file").write_next(start(5))


def test_the_status_has_a_row_for_each_run(tmp_path: Path) -> None:
    assert describe_personalizations(tmp_path) == []
    one, other = (files(tmp_path / "runs" / run / "clients" / "7") for run in ("aa", "bb"))
    one.begin(start(5, 1))
    one.finish(start(5, 1), 3, bytes(32), Score(0.75, 0.5, 8))
    one.write_next(start(10))
    other.write_next(start(2))
    assert describe_personalizations(tmp_path) == [
        ("aa", "3", "5", "50.0% of 10", "75.0% of 8", "10"),
        ("bb", "0", "", "", "", "2"),
    ]
