"""The file of a backup is read whole or not at all."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.server.keeping.backup_file import extract_backup, write_backup
from samara.shared.errors import ArchiveError
from samara.shared.storage.archive import ArchivedFile

CONTENTS = {"a": b"", "ledger/0000000001.seg": bytes(range(200)), "certificates/ca.key": b"secret"}


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("backup") / "file"
    size = write_backup(file, [ArchivedFile(*one) for one in CONTENTS.items()])
    assert size == file.stat().st_size
    return file


def extracted(file: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    return {path: (folder / path).read_bytes() for path in extract_backup(file, folder)}


def test_what_was_backed_up_comes_back(backup: Path, tmp_path: Path) -> None:
    assert extracted(backup, tmp_path / "out") == CONTENTS
    for file in (backup, tmp_path / "out" / "certificates/ca.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def assert_refused(data: bytes, folder: Path) -> None:
    """Check that a damaged backup is refused before anything is extracted."""
    (folder / "altered").write_bytes(data)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    with pytest.raises(ArchiveError):
        extract_backup(folder / "altered", out)
    assert not list(out.iterdir())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@given(st.data())
def test_an_altered_byte_is_found_wherever_it_is(
    backup: Path, place: Path, data: st.DataObject
) -> None:
    content = bytearray(backup.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert_refused(bytes(content), place)


@given(st.data())
def test_a_file_that_was_cut_off_or_added_to_is_refused(
    backup: Path, place: Path, data: st.DataObject
) -> None:
    content = backup.read_bytes()
    assert_refused(content[: data.draw(st.integers(0, len(content) - 1))], place)
    assert_refused(content + data.draw(st.binary(min_size=1, max_size=100)), place)


def test_another_file_and_another_version_are_named(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x" * 100)
    with pytest.raises(ArchiveError, match="was not written by `samara server backup`"):
        extract_backup(tmp_path / "text", tmp_path)
    content = backup.read_bytes()
    (tmp_path / "later").write_bytes(content[:8] + b"\2" + content[9:])
    with pytest.raises(
        ArchiveError, match="version 2, but this Samara supports only version 1; update"
    ):
        extract_backup(tmp_path / "later", tmp_path)
    with pytest.raises(ArchiveError, match="none: No such file"):
        extract_backup(tmp_path / "none", tmp_path)
    with pytest.raises(ArchiveError, match="exists; name a new file"):
        write_backup(backup, [])
