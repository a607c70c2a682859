"""The file of a backup: an archive with a hash at its end, which is read whole or not at all.

    header    "SAMARABK" · version u16 · zeros 6
    archive   shared/archive.py
    hash      SHA-256 of all before, 32 bytes

It is not encrypted, so that it can be written without anybody at hand, and only its owner may read
it: it holds whatever keys the run's folder holds.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from samara.shared.archive import (
    PIECE_BYTES,
    ArchivedFile,
    archive_pieces,
    damaged,
    extract_pieces,
    write_new_file,
)
from samara.shared.errors import ArchiveError

_MAGIC, _VERSION = b"SAMARABK", 1
_HEADER = struct.Struct("<8sH6x")
_HASH_BYTES = 32


def write_backup(file: Path, files: Sequence[ArchivedFile]) -> int:
    """Write the file of a backup, whole or not at all; return its bytes.

    Args:
        file: file to be written; it must not exist.
        files: what goes into it.

    Raises:
        ArchiveError: if the file exists or cannot be written, or a source changes meanwhile.
    """
    return write_new_file(file, _with_hash(archive_pieces(files, file)))


def extract_backup(file: Path, folder: Path) -> list[str]:
    """Write what is in a backup into a folder, after checking all of it; return the paths.

    Args:
        file: file of `write_backup`.
        folder: empty folder, which only its owner may use.

    Raises:
        ArchiveError: if the file is damaged, cut off, of another version or no backup, or something
            cannot be read or written; what is in the folder by then must not be used.
    """
    try:
        with file.open("rb") as opened:
            header = opened.read(_HEADER.size)
            if len(header) < _HEADER.size or not header.startswith(_MAGIC):
                raise ArchiveError(f"{file}: not a file of `samara server backup`")
            _, version = _HEADER.unpack(header)
            if version != _VERSION:
                raise ArchiveError(
                    f"{file}: has version {version}; update Samara, which knows {_VERSION}"
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
    """Yield header, pieces, and the hash of both."""
    header = _HEADER.pack(_MAGIC, _VERSION)
    digest = hashlib.sha256(header)
    yield header
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield digest.digest()


def _before_the_hash(opened: BinaryIO) -> Iterator[bytes]:
    """Yield what is between here and the hash at the end of a file."""
    here = opened.tell()
    left = opened.seek(0, 2) - _HASH_BYTES - here
    opened.seek(here)
    while left > 0 and (piece := opened.read(min(left, PIECE_BYTES))):
        left -= len(piece)
        yield piece
