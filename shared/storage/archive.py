"""An archive format for files: a list of entries followed by their contents.

    list length u32 · list, JSON: path, size, SHA-256 and time of modification of each · contents

Only regular files can be extracted. The format itself does not prove that an archive is complete;
the file that contains it does. A sealed archive has chunks (devices/live/owner/sealed_archive.py),
and a backup has a hash at its end (server/keeping/backup_file.py).
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samara.shared.errors import ArchiveError
from samara.shared.storage.files import UNFINISHED, sync_folder

PIECE_BYTES = 2**20
MOST_FILES = 100_000
MOST_BYTES = 8 * 2**30
"""Largest total size of the files in an archive, in bytes."""
_LENGTH = struct.Struct("<I")
_MOST_LIST_BYTES = 2**26
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_DEPTH = 8


@dataclass(frozen=True)
class ArchivedFile:
    """A file to be archived.

    Attributes:
        path: path in the archive, with slashes.
        source: content of the file, or the path from which the content is read.
    """

    path: str
    source: Path | bytes


class _Entry(BaseModel):
    """An entry of the list of files."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str
    size: int = Field(ge=0, le=MOST_BYTES)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    modified_ns: int = Field(ge=0, lt=2**63)


class _List(BaseModel):
    """The list of files, at the beginning of an archive."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: list[_Entry] = Field(max_length=MOST_FILES)


def is_safe_path(path: str) -> bool:
    """Return whether an archive may hold a path: a relative path without hidden names."""
    names = path.split("/")
    return len(names) <= _MOST_DEPTH and all(_NAME.fullmatch(name) for name in names)


def archive_pieces(files: Sequence[ArchivedFile], file: Path) -> Iterator[bytes]:
    """Return the bytes of an archive in pieces. Each file is read twice: for its hash, and to copy.

    Args:
        files: files to archive.
        file: path of the archive, for messages.

    Raises:
        ArchiveError: if a source cannot be read, or the archive would be too large. The iterator
            raises the same error if a source has changed meanwhile.
    """
    listed = _List(files=[_describe(one) for one in files])
    _check_list(listed, file)
    return _contents(listed, files)


def write_new_file(file: Path, pieces: Iterable[bytes]) -> int:
    """Write a file readable only by its owner, whole or not at all; return its size in bytes.

    Args:
        file: output file; it must not exist.
        pieces: content of the file.

    Raises:
        ArchiveError: if the file exists or cannot be written.
    """
    if file.exists():
        raise ArchiveError(f"{file}: exists; name a new file")
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        os.replace(unfinished, file)
        sync_folder(file.parent)
        return file.stat().st_size
    except OSError as error:
        raise ArchiveError(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def extract_pieces(pieces: Iterator[bytes], folder: Path, file: Path) -> list[str]:
    """Extract the files of an archive into a folder, check their hashes, and return their paths.

    After an error the folder's content must not be used.

    Args:
        pieces: bytes of the archive.
        folder: empty folder that is private to its owner.
        file: path of the archive, for messages.

    Raises:
        ArchiveError: if the archive is damaged or truncated, holds an unsafe path, or a file cannot
            be read or written.
    """
    try:
        reader = _Reader(pieces, file)
        (length,) = _LENGTH.unpack(reader.take(_LENGTH.size))
        if length > _MOST_LIST_BYTES:
            raise damaged(file, "its list of files is too long")
        listed = _read_list(reader.take(length), file)
        for entry in listed.files:
            _write_entry(entry, reader, folder, file)
        reader.end()
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir():
                sync_folder(path)
        sync_folder(folder)
    except OSError as error:
        raise ArchiveError(f"{error.filename or file}: {error.strerror}") from error
    return [entry.path for entry in listed.files]


def damaged(file: Path, how: str) -> ArchiveError:
    """Return the error for a damaged archive."""
    return ArchiveError(f"{file}: {how}; no file was taken from it")


def _describe(one: ArchivedFile) -> _Entry:
    """Read a file, and return its entry for the list."""
    if isinstance(one.source, bytes):
        size = len(one.source)
        modified = 0
        digest = hashlib.sha256(one.source)
    else:
        try:
            with one.source.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256")
                status = os.fstat(opened.fileno())
        except OSError as error:
            raise ArchiveError(f"{one.source}: cannot be read: {error.strerror}") from error
        size, modified = status.st_size, status.st_mtime_ns
    return _Entry(path=one.path, size=size, sha256=digest.hexdigest(), modified_ns=modified)


def _contents(listed: _List, files: Sequence[ArchivedFile]) -> Iterator[bytes]:
    """Yield an archive in pieces: its list of files, then their contents."""
    text = json.dumps(listed.model_dump()).encode()
    yield _LENGTH.pack(len(text)) + text
    for entry, one in zip(listed.files, files, strict=True):
        if isinstance(one.source, bytes):
            yield one.source
            continue
        digest = hashlib.sha256()
        with one.source.open("rb") as opened:
            while piece := opened.read(PIECE_BYTES):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != entry.sha256:
            raise ArchiveError(
                f"{one.source}: changed while it was read; stop the process that writes it"
            )


def _check_list(listed: _List, file: Path) -> None:
    """Check the paths, the number and the total size of the files in an archive's list."""
    paths = [entry.path for entry in listed.files]
    if bad := [path for path in paths if not is_safe_path(path)]:
        raise ArchiveError(f"{file}: {bad[0]!r} is not a valid path in an archive")
    folded = [path.casefold() for path in paths]
    folders = {
        "/".join(names[:end])
        for names in (path.split("/") for path in folded)
        for end in range(1, len(names))
    }
    if len(set(folded)) < len(folded) or folders & set(folded):
        raise ArchiveError(f"{file}: two of its files have the same path")
    if (total := sum(entry.size for entry in listed.files)) > MOST_BYTES:
        raise ArchiveError(f"{file}: {total} bytes; an archive holds at most {MOST_BYTES}")


def _read_list(text: bytes, file: Path) -> _List:
    try:
        listed = _List.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise damaged(file, "its list of files cannot be read") from error
    _check_list(listed, file)
    return listed


def _write_entry(entry: _Entry, reader: "_Reader", folder: Path, file: Path) -> None:
    """Write one file with its modification time, and check its hash."""
    target = folder / entry.path
    digest = hashlib.sha256()
    left = entry.size
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while left:
            piece = reader.take(min(left, PIECE_BYTES))
            digest.update(piece)
            out.write(piece)
            left -= len(piece)
        out.flush()
        os.fsync(out.fileno())
    os.utime(target, ns=(entry.modified_ns, entry.modified_ns))
    if digest.hexdigest() != entry.sha256:
        raise damaged(file, f"the hash of {entry.path} differs from the listed hash")


class _Reader:
    """Reads bytes across the pieces of an archive."""

    def __init__(self, pieces: Iterator[bytes], file: Path) -> None:
        self._pieces, self._file, self._buffer = pieces, file, b""

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            ArchiveError: if fewer bytes are left.
        """
        pieces = [self._buffer]
        while sum(map(len, pieces)) < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise damaged(self._file, "it ends too early")
            pieces.append(piece)
        whole = b"".join(pieces)
        self._buffer = whole[size:]
        return whole[:size]

    def end(self) -> None:
        """Check that no bytes are left."""
        if self._buffer or any(self._pieces):
            raise damaged(self._file, "something follows its last file")
