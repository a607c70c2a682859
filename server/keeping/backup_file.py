"""The file format of backups: an archive with a hash at its end.

    header    "SAMARABK" · version u16 · zeros 6
    archive   shared/storage/archive.py
    hash      SHA-256 of header and archive, 32 bytes

A backup is not encrypted, so that an unattended command can write one. It contains all keys of the
run's folder. Only the owner of the file may therefore read it.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from samara.shared.errors import ArchiveError
from samara.shared.storage.archive import (
    PIECE_BYTES,
    ArchivedFile,
    archive_pieces,
    damaged,
    extract_pieces,
    write_new_file,
)

_MAGIC, _VERSION = b"SAMARABK", 1
_HEADER = struct.Struct("<8sH6x")
_HASH_BYTES = 32


def write_backup(file: Path, files: Sequence[ArchivedFile]) -> int:
    """Write a backup file and return its size in bytes; an error leaves no file.

    Args:
        file: output file; it must not exist.
        files: content of the backup.

    Raises:
        ArchiveError: if the file exists or cannot be written, or a source changes during the copy.
    """
    return write_new_file(file, _with_hash(archive_pieces(files, file)))


def extract_backup(file: Path, folder: Path) -> list[str]:
    """Check a whole backup, extract it into a folder, and return the paths.

    Args:
        file: backup written by `write_backup`.
        folder: empty folder that is private to its owner.

    Raises:
        ArchiveError: if the file is damaged, truncated, not a backup or of another version, or if a
            file cannot be read or written. Do not use the folder's content after an error.
    """
    try:
        with file.open("rb") as opened:
            header = opened.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise ArchiveError(f"{file}: was not written by `samara server backup`")
            _, version = _HEADER.unpack(header)
            if version != _VERSION:
                raise ArchiveError(
                    f"{file}: has version {version}, but this Samara supports only version "
                    f"{_VERSION}; update Samara"
                )
            digest = hashlib.sha256(header)
            for piece in _before_the_hash(opened):
                digest.update(piece)
            if opened.read() != digest.digest():
                raise damaged(file, "damaged or cut off")
            opened.seek(_HEADER.size)
            return extract_pieces(_before_the_hash(opened), folder, file)
    except OSError as error:
        raise ArchiveError(f"{error.filename or file}: {error.strerror}") from error


def _with_hash(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the header, the pieces, and the hash of header and pieces."""
    header = _HEADER.pack(_MAGIC, _VERSION)
    digest = hashlib.sha256(header)
    yield header
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield digest.digest()


def _before_the_hash(opened: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes between the current position and the hash at the end of a file."""
    here = opened.tell()
    left = opened.seek(0, 2) - _HASH_BYTES - here
    opened.seek(here)
    while left > 0 and (piece := opened.read(min(left, PIECE_BYTES))):
        left -= len(piece)
        yield piece
