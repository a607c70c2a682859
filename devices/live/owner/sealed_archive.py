"""A sealed archive: files in one encrypted file, which are extracted completely or not at all.

    header    "SAMARAMV" · version u16 · zeros 6 · salt 16
    chunks    AES-256-GCM of 1 MiB each, the last one shorter; a tag of 16 bytes ends each

The key is derived by scrypt from passphrase and salt (RFC 7914, N = 2¹⁷, r = 8, p = 1). The nonce
of a chunk is its number in 11 bytes, big-endian, followed by a byte that is 1 in the last chunk.
Chunks can therefore neither be exchanged nor cut off (STREAM; Hoang et al., 2015). The header is
authenticated with every chunk. The plain text is an archive (shared/storage/archive.py). The format
is in docs/reference/client.md.
"""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from samara.shared.errors import ArchiveError
from samara.shared.storage.archive import (
    ArchivedFile,
    archive_pieces,
    extract_pieces,
    write_new_file,
)

CHUNK_BYTES = 2**20
SCRYPT_COST = 2**17
_MAGIC = b"SAMARAMV"
_VERSION = 1
_HEADER = struct.Struct("<8sH6x16s")
_TAG_BYTES = 16
_SALT_BYTES = 16


def write_archive(file: Path, files: Sequence[ArchivedFile], passphrase: str) -> int:
    """Write an archive that only its owner may read; return its size in bytes.

    After an error, no file is left.

    Args:
        file: path of the archive; it must not exist.
        files: files to archive.
        passphrase: passphrase of the encryption.

    Raises:
        ArchiveError: if the file exists, if a source cannot be read or changes meanwhile, or if the
            archive cannot be written or would be too large.
    """
    pieces = archive_pieces(files, file)
    header = _HEADER.pack(_MAGIC, _VERSION, salt := os.urandom(_SALT_BYTES))
    return write_new_file(file, chain([header], _seal(pieces, _key(passphrase, salt), header)))


def extract_archive(file: Path, folder: Path, passphrase: str) -> list[str]:
    """Extract an archive into a folder, verifying each file; return their paths.

    After an error, the content of the folder must not be used.

    Args:
        file: path of the archive.
        folder: empty folder, which only its owner may use.
        passphrase: passphrase of the encryption.

    Raises:
        ArchiveError: if the archive is damaged, truncated, of another version or encrypted with
            another passphrase, if it contains an unsafe path, or if reading or writing fails.
    """
    try:
        with file.open("rb") as opened:
            return extract_pieces(_open(opened, file, passphrase), folder, file)
    except OSError as error:
        raise ArchiveError(f"{error.filename or file}: {error.strerror}") from error


def _key(passphrase: str, salt: bytes) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, n=SCRYPT_COST, r=8, p=1).derive(passphrase.encode()))


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _seal(pieces: Iterable[bytes], key: AESGCM, header: bytes) -> Iterator[bytes]:
    """Yield the encrypted chunks of the concatenated pieces."""
    number = 0
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) > CHUNK_BYTES:
            chunk = bytes(buffer[:CHUNK_BYTES])
            buffer = buffer[CHUNK_BYTES:]
            yield key.encrypt(_nonce(number, False), chunk, header)
            number += 1
    yield key.encrypt(_nonce(number, True), bytes(buffer), header)


def _open(opened: BinaryIO, file: Path, passphrase: str) -> Iterator[bytes]:
    """Yield the decrypted chunks up to the end of the file.

    Raises:
        ArchiveError: at the first chunk that fails authentication.
    """
    header = opened.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise ArchiveError(f"{file}: this file was not written by `samara client move`")
    _, version, salt = _HEADER.unpack(header)
    if version != _VERSION:
        raise ArchiveError(
            f"{file}: this file has version {version}, but this Samara supports {_VERSION}; "
            f"update Samara"
        )
    key = _key(passphrase, salt)
    number = 0
    chunk = opened.read(CHUNK_BYTES + _TAG_BYTES)
    while chunk:
        following = opened.read(CHUNK_BYTES + _TAG_BYTES)
        try:
            yield key.decrypt(_nonce(number, not following), chunk, header)
        except InvalidTag:
            raise ArchiveError(
                f"{file}: the passphrase is wrong, or the file is damaged or cut off; nothing was "
                "imported"
            ) from None
        chunk = following
        number = number + 1
