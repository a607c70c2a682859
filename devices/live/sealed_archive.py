"""A sealed archive: files in one encrypted file, which is read whole or not at all.

    header    "SAMARAMV" · version u16 · zeros 6 · salt 16
    chunks    AES-256-GCM of 1 MiB each, the last one shorter; a tag of 16 bytes ends each

The key is scrypt's of passphrase and salt (RFC 7914, N = 2¹⁷, r = 8, p = 1). A chunk's nonce is its
number in 11 bytes, big-endian, and a byte that is 1 in the last one, so that chunks can neither be
exchanged nor cut off (STREAM; Hoang et al., 2015). The header is authenticated with every chunk.
What is encrypted is an archive (shared/archive.py). The format is in docs/reference/client.md.
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

from samara.shared.archive import ArchivedFile, archive_pieces, extract_pieces, write_new_file
from samara.shared.errors import ArchiveError

CHUNK_BYTES = 2**20
SCRYPT_COST = 2**17
_MAGIC, _VERSION = b"SAMARAMV", 1
_HEADER = struct.Struct("<8sH6x16s")
_TAG_BYTES, _SALT_BYTES = 16, 16


def write_archive(file: Path, files: Sequence[ArchivedFile], passphrase: str) -> int:
    """Write an archive that only its owner may read, whole or not at all; return its bytes.

    Args:
        file: file to be written; it must not exist.
        files: what goes into it.
        passphrase: what it is encrypted with.

    Raises:
        ArchiveError: if the file exists, a source cannot be read or changes meanwhile, or the
            archive cannot be written or would be too large.
    """
    pieces = archive_pieces(files, file)
    header = _HEADER.pack(_MAGIC, _VERSION, salt := os.urandom(_SALT_BYTES))
    return write_new_file(file, chain([header], _seal(pieces, _key(passphrase, salt), header)))


def extract_archive(file: Path, folder: Path, passphrase: str) -> list[str]:
    """Write the files of an archive into a folder, after checking each; return their paths.

    If this raises an error, what is in the folder by then must not be used.

    Args:
        file: archive.
        folder: empty folder, which only its owner may use.
        passphrase: what the archive is encrypted with.

    Raises:
        ArchiveError: if the archive is damaged, cut off, of another version, encrypted with another
            passphrase, or holds a path that is not safe; if something cannot be read or written.
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
    """Yield encrypted chunks of what the pieces hold together."""
    number, buffer = 0, bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) > CHUNK_BYTES:
            chunk, buffer = bytes(buffer[:CHUNK_BYTES]), buffer[CHUNK_BYTES:]
            yield key.encrypt(_nonce(number, False), chunk, header)
            number += 1
    yield key.encrypt(_nonce(number, True), bytes(buffer), header)


def _open(opened: BinaryIO, file: Path, passphrase: str) -> Iterator[bytes]:
    """Yield decrypted chunks; the last one ends the file.

    Raises:
        ArchiveError: at the first chunk that is not authentic.
    """
    header = opened.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise ArchiveError(f"{file}: not a file of `samara client move`")
    _, version, salt = _HEADER.unpack(header)
    if version != _VERSION:
        raise ArchiveError(f"{file}: has version {version}; update Samara, which knows {_VERSION}")
    key, number = _key(passphrase, salt), 0
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
        chunk, number = following, number + 1
