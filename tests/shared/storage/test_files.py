import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from helpers import no_room, no_sync

from samara.shared.errors import SamaraError
from samara.shared.storage.files import make_folder, write_durably, write_requested


@pytest.mark.parametrize("disk", [no_sync, no_room])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    with disk(2), pytest.raises(OSError, match=r"No space|too large"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    write_durably(path, b"n", memoryview(b"ew"))
    assert path.read_bytes() == b"new"


def test_a_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    rename = os.replace

    def replacing(source: Path, target: Path) -> None:
        calls.append((target.name, source.read_bytes()))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    write_durably(tmp_path / "file", b"content")
    assert calls == ["fsync", ("file", b"content"), "fsync"]


def test_the_name_of_every_new_folder_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="exists"):
        make_folder(tmp_path / "file")


def test_a_file_does_not_replace_a_device_or_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="is not a regular file"):
        write_durably(pipe, b"page")
    assert pipe.is_fifo()
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_requested_file_replaces_only_a_file_of_its_kind(tmp_path: Path) -> None:
    data = tmp_path / "reviews.csv"
    data.write_text("text,label\na warm film,1\n")
    with pytest.raises(SamaraError, match=r"reviews\.csv: exists, and is another kind of file"):
        write_requested(data, b"variant,runs,client\n", b"variant,")
    assert data.read_text() == "text,label\na warm film,1\n"
    report = tmp_path / "report.csv"
    report.touch()
    for numbers in (b"1", b"2"):
        write_requested(report, b"variant,runs,client\n" + numbers, b"variant,")
    assert report.read_bytes().endswith(b"2")


def test_a_file_does_not_replace_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("", ".", "..", "/"):
        with pytest.raises(SamaraError, match="cannot be written: Is a directory"):
            write_requested(Path(folder), b"page", b"page")
