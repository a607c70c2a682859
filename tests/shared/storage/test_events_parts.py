"""A long event file becomes compressed parts, and readers see one file."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import SamaraError
from samara.shared.storage import events as event_files
from samara.shared.storage.events import (
    EventFollower,
    append_in_parts,
    close_long_part,
    count_parts,
    is_part,
    read_events,
    read_whole_events,
)

EVENTS = [{"round": number, "clients": "x" * 40} for number in range(40)]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "PART_BYTES", 300)


def write(file: Path, events: list[dict[str, Any]]) -> None:
    for event in events:
        append_in_parts(file, event)


def test_the_parts_of_a_file_are_read_as_one(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, EVENTS)
    assert file.stat().st_size <= 400
    assert count_parts(file) == 7
    assert read_events(file) == read_whole_events(file) == list(EventFollower(file).read_new())
    assert read_events(file) == EVENTS
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[:2] == ["metrics.00001.jsonl.gz", "metrics.00002.jsonl.gz"]
    assert [name for name in names if not is_part(tmp_path / name)] == ["metrics.jsonl"]


def test_files_of_other_names_are_no_parts(tmp_path: Path) -> None:
    for name in ("metrics.jsonl.new", "metrics.1.jsonl", "metrics.00001.json", "step.00001.jsonl"):
        (tmp_path / name).touch()
    assert count_parts(tmp_path / "metrics.jsonl") == 0


@given(st.lists(st.integers(0, 9), max_size=12))
def test_a_follower_sees_every_event_once(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int]
) -> None:
    file = tmp_path_factory.mktemp("e") / "metrics.jsonl"
    follower, seen, begun = EventFollower(file), list[dict[str, Any]](), 0
    for count in counts:
        write(file, EVENTS[begun : begun + count])
        begun += count
        seen += follower.read_new()
        assert seen == EVENTS[:begun]


@pytest.mark.parametrize("at", ["touch", "write_durably", "unlink"])
def test_a_process_that_is_killed_while_it_compresses_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, EVENTS[:12])
    follower = EventFollower(file)
    assert list(follower.read_new()) == EVENTS[:12]

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(event_files if at == "write_durably" else Path, at, killed)
        with pytest.raises(KeyboardInterrupt):
            write(file, EVENTS[12:20])
    whole = read_whole_events(file)
    assert whole == EVENTS[: len(whole)]
    assert len(whole) >= 12
    write(file, EVENTS[len(whole) :])
    assert read_events(file) == EVENTS
    assert list(follower.read_new()) == EVENTS[12:]
    assert not list(tmp_path.glob("metrics.*[0-9].jsonl"))


def test_a_follower_does_not_mistake_a_new_file_for_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file becomes a part after the follower has listed the parts, before it opens the file."""
    file = tmp_path / "metrics.jsonl"
    write(file, EVENTS[:5])
    follower = EventFollower(file)
    assert list(follower.read_new()) == EVENTS[:5]
    plain, written = EventFollower._read_file, list[int]()

    def read_late(self: EventFollower) -> tuple[int, bytes]:
        if not written:
            written.append(1)
            write(file, EVENTS[5:8])
        return plain(self)

    monkeypatch.setattr(EventFollower, "_read_file", read_late)
    assert list(follower.read_new()) == EVENTS[5:8]


@pytest.mark.parametrize("keep", [0, 10, 40])
def test_a_damaged_part_is_named(tmp_path: Path, keep: int) -> None:
    file = tmp_path / "metrics.jsonl"
    write(file, EVENTS)
    part = tmp_path / "metrics.00002.jsonl.gz"
    part.write_bytes(part.read_bytes()[:keep])
    with pytest.raises(SamaraError, match=r"metrics\.00002\.jsonl\.gz: damaged; restore it"):
        read_events(file)


def test_a_short_file_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    close_long_part(file)
    assert not file.exists()
    write(file, EVENTS[:2])
    close_long_part(file)
    assert count_parts(file) == 0
