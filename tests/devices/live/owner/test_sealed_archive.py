"""A sealed archive is read completely or not at all, and is extracted only into its folder."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.devices.live.owner import sealed_archive
from samara.devices.live.owner.sealed_archive import extract_archive, write_archive
from samara.shared.errors import ArchiveError
from samara.shared.storage import archive as archives
from samara.shared.storage.archive import ArchivedFile, is_safe_path

PASSPHRASE = "correct horse"
CONTENTS = {"a": b"", "runs/0/session": bytes(range(200)), "b.json": b"x" * 64, "c/d": b"yes"}


@pytest.fixture(scope="module", autouse=True)
def small_and_cheap() -> Iterator[None]:
    """Use chunks of 64 bytes, so that a small archive has several, and derive keys quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_archive, "CHUNK_BYTES", 64)
        patch.setattr(archives, "PIECE_BYTES", 64)
        patch.setattr(sealed_archive, "SCRYPT_COST", 2)
        yield


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    (folder / "session").write_bytes(CONTENTS["runs/0/session"])
    os.utime(folder / "session", ns=(5, 7))
    files = [
        ArchivedFile(path, folder / "session" if path.endswith("session") else content)
        for path, content in CONTENTS.items()
    ]
    assert write_archive(folder / "sealed", files, PASSPHRASE) == (folder / "sealed").stat().st_size
    return folder / "sealed"


def entry(path: str, content: bytes = b"", **changes: Any) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    return {"path": path, "size": len(content), "sha256": sha256, "modified_ns": 0} | changes


def forge(file: Path, listed: Any, contents: bytes = b"") -> Path:
    """Write an archive as someone who knows the passphrase, with an arbitrary list of files."""
    salt = bytes(16)
    header = sealed_archive._HEADER.pack(b"SAMARAMV", 1, salt)
    text = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    content = archives._LENGTH.pack(len(text)) + text + contents
    key = sealed_archive._key(PASSPHRASE, salt)
    file.write_bytes(header + b"".join(sealed_archive._seal(iter([content]), key, header)))
    return file


def extracted(file: Path, folder: Path, passphrase: str = PASSPHRASE) -> dict[str, bytes]:
    folder.mkdir()
    paths = extract_archive(file, folder, passphrase)
    return {path: (folder / path).read_bytes() for path in paths}


def test_what_was_archived_comes_back(archive: Path, tmp_path: Path) -> None:
    assert extracted(archive, tmp_path / "out") == CONTENTS
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    for path in CONTENTS:
        assert stat.S_IMODE((tmp_path / "out" / path).stat().st_mode) == 0o600
    assert (tmp_path / "out" / "runs/0/session").stat().st_mtime_ns == 7
    assert all(content not in archive.read_bytes() for content in CONTENTS.values() if content)
    with pytest.raises(ArchiveError, match="exists; name a new file"):
        write_archive(archive, [], PASSPHRASE)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 1000])
def test_every_length_comes_back(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    write_archive(tmp_path / "sealed", [ArchivedFile("a", content)], PASSPHRASE)
    assert extracted(tmp_path / "sealed", tmp_path / "out") == {"a": content}


def test_another_passphrase_opens_nothing(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="the passphrase is wrong, or the file is damaged"):
        extracted(archive, tmp_path / "out", "incorrect horse")
    assert not list((tmp_path / "out").iterdir())


def assert_refused(data: bytes, folder: Path) -> None:
    (folder / "sealed").write_bytes(data)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    for file in sorted(out.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    with pytest.raises(ArchiveError):
        extract_archive(folder / "sealed", out, PASSPHRASE)
    assert {path.name for path in folder.iterdir()} == {"sealed", "out"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@given(st.data())
def test_a_damaged_byte_is_found_wherever_it_is(
    archive: Path, place: Path, data: st.DataObject
) -> None:
    content = bytearray(archive.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    assert_refused(bytes(content), place)


@given(st.data())
def test_a_file_that_was_cut_off_or_added_to_is_refused(
    archive: Path, place: Path, data: st.DataObject
) -> None:
    content = archive.read_bytes()
    assert_refused(content[: data.draw(st.integers(0, len(content) - 1))], place)
    assert_refused(content + data.draw(st.binary(min_size=1, max_size=100)), place)


def test_exchanged_repeated_and_missing_chunks_are_found(archive: Path, place: Path) -> None:
    content, start, size = archive.read_bytes(), 32, 64 + 16
    chunks = [content[at : at + size] for at in range(start, len(content), size)]
    assert len(chunks) > 4
    for changed in (
        [chunks[1], chunks[0], *chunks[2:]],
        [chunks[0], *chunks],
        [chunks[0], *chunks[2:]],
        chunks[:-1],
    ):
        assert_refused(content[:start] + b"".join(changed), place)
    assert_refused(content[:8] + b"\2" + content[9:], place)


HOSTILE = st.one_of(
    st.sampled_from(
        [
            "",
            "/",
            "..",
            "../x",
            "a/../../x",
            "/etc/x",
            "a//b",
            "a/",
            "./a",
            "~",
            "C:\\x",
            "a\\..\\b",
        ]
    ),
    st.text(max_size=20),
    st.lists(st.sampled_from(["..", ".", "a", "", "b", ".x", "a\0"]), max_size=12).map("/".join),
)


@given(HOSTILE)
def test_a_path_stays_inside_the_folder(place: Path, path: str) -> None:
    if is_safe_path(path):
        inside = (place / "out" / path).resolve()
        assert inside.is_relative_to(place / "out")
        assert inside != place / "out"
        assert not any(part.startswith(".") for part in path.split("/"))
        return
    file = forge(place / "forged", {"files": [entry(path)]})
    data = file.read_bytes()
    file.unlink()
    assert_refused(data, place)
    assert not list((place / "out").iterdir())


@pytest.mark.parametrize(
    ("listed", "contents", "message"),
    [
        ({"files": [entry("a"), entry("a")]}, b"", "the same path"),
        ({"files": [entry("a"), entry("A")]}, b"", "the same path"),
        ({"files": [entry("a"), entry("a/b")]}, b"", "the same path"),
        ({"files": [entry("a", b"x", size=2)]}, b"x", "ends too early"),
        ({"files": [entry("a", b"x", size=2**40)]}, b"x", "list of files cannot be read"),
        ({"files": [entry("a", b"x", size=-1)]}, b"x", "list of files cannot be read"),
        ({"files": [entry("a", b"x", size=True)]}, b"x", "list of files cannot be read"),
        ({"files": [entry("a", b"x")]}, b"y", "differs from the listed hash"),
        ({"files": [entry("a", b"x")]}, b"xy", "something follows its last file"),
        ({"files": [entry("a", b"x", mode=7)]}, b"x", "list of files cannot be read"),
        ({"files": [entry("a", b"x", modified_ns=2**70)]}, b"x", "list of files cannot be read"),
        ({"files": [entry("a", size=2**33), entry("b", size=2**33)]}, b"", "at most"),
        ({"files": None}, b"", "list of files cannot be read"),
        ([], b"", "list of files cannot be read"),
        (b"{" * 5000, b"", "list of files cannot be read"),
        (b"\xff", b"", "list of files cannot be read"),
    ],
)
def test_a_list_that_is_wrong_is_refused(
    listed: Any, contents: bytes, message: str, tmp_path: Path
) -> None:
    forge(tmp_path / "forged", listed, contents)
    with pytest.raises(ArchiveError, match=message):
        extracted(tmp_path / "forged", tmp_path / "out")


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    describe = archives._describe

    def describe_then_change(one: ArchivedFile) -> Any:
        described = describe(one)
        source.write_bytes(b"after!")
        return described

    monkeypatch.setattr(archives, "_describe", describe_then_change)
    with pytest.raises(ArchiveError, match="changed while it was read"):
        write_archive(tmp_path / "sealed", [ArchivedFile("a", source)], PASSPHRASE)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_what_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="none: cannot be read"):
        write_archive(tmp_path / "x", [ArchivedFile("a", tmp_path / "none")], PASSPHRASE)
    with pytest.raises(ArchiveError, match="cannot be written"):
        write_archive(tmp_path / "no" / "x", [ArchivedFile("a", b"")], PASSPHRASE)
    with pytest.raises(ArchiveError, match=r"'\.\./a' is not a valid path"):
        write_archive(tmp_path / "x", [ArchivedFile("../a", b"")], PASSPHRASE)
    with pytest.raises(ArchiveError, match="none: No such file"):
        extract_archive(tmp_path / "none", tmp_path, PASSPHRASE)
    assert not list(tmp_path.iterdir())
