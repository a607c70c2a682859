"""A sealed archive: files in one encrypted file, which is read whole or not at all.

    header    "SAMARAMV" · version u16 · zeros 6 · salt 16
    chunks    AES-256-GCM of 1 MiB each, the last one shorter; a tag of 16 bytes ends each

The key is scrypt's of passphrase and salt (RFC 7914, N = 2¹⁷, r = 8, p = 1). A chunk's nonce is its
number in 11 bytes, big-endian, and a byte that is 1 in the last one, so that chunks can neither be
exchanged nor cut off (STREAM; Hoang et al., 2015). The header is authenticated with every chunk.
What is encrypted begins with a list of the files (u32 length, JSON); their contents follow in its
order. The format is in docs/reference/client.md.
"""

import hashlib
import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import DeviceError
from shared.files import UNFINISHED, sync_folder

CHUNK_BYTES = 2**20
MOST_FILES = 100_000
MOST_BYTES = 8 * 2**30
"""Total size of the files in an archive."""
SCRYPT_COST = 2**17
_MAGIC, _VERSION = b"SAMARAMV", 1
_HEADER = struct.Struct("<8sH6x16s")
_LENGTH = struct.Struct("<I")
_MOST_LIST_BYTES = 2**26
_TAG_BYTES, _SALT_BYTES = 16, 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_DEPTH = 8


@dataclass(frozen=True)
class ArchivedFile:
    """A file to be archived.

    Attributes:
        path: path in the archive, with slashes.
        source: its content, or the file that holds it.
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
    """The list of files, at the beginning of what is encrypted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    files: list[_Entry] = Field(max_length=MOST_FILES)


def is_safe_path(path: str) -> bool:
    """Return whether a path may be in an archive: plain names, relative, none of them hidden."""
    names = path.split("/")
    return len(names) <= _MOST_DEPTH and all(_NAME.fullmatch(name) for name in names)


def write_archive(file: Path, files: Sequence[ArchivedFile], passphrase: str) -> int:
    """Write an archive that only its owner may read, whole or not at all; return its bytes.

    Args:
        file: file to be written; it must not exist.
        files: what goes into it.
        passphrase: what it is encrypted with.

    Raises:
        DeviceError: if the file exists, a source cannot be read or changes meanwhile, or the
            archive cannot be written or would be too large.
    """
    listed = _List(files=[_describe(one) for one in files])
    _check_list(listed, file)
    if file.exists():
        raise DeviceError(f"{file}: exists; name a new file")
    header = _HEADER.pack(_MAGIC, _VERSION, salt := os.urandom(_SALT_BYTES))
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(header)
            for chunk in _seal(_contents(listed, files), _key(passphrase, salt), header):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        os.replace(unfinished, file)
        sync_folder(file.parent)
        return file.stat().st_size
    except OSError as error:
        raise DeviceError(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def extract_archive(file: Path, folder: Path, passphrase: str) -> list[str]:
    """Write the files of an archive into a folder, after checking each; return their paths.

    If this raises an error, what is in the folder by then must not be used.

    Args:
        file: archive.
        folder: empty folder, which only its owner may use.
        passphrase: what the archive is encrypted with.

    Raises:
        DeviceError: if the archive is damaged, cut off, of another version, encrypted with another
            passphrase, or holds a path that is not safe; if something cannot be read or written.
    """
    try:
        with file.open("rb") as opened:
            reader = _Reader(_open(opened, file, passphrase), file)
            (length,) = _LENGTH.unpack(reader.take(_LENGTH.size))
            if length > _MOST_LIST_BYTES:
                raise _damaged(file, "its list of files is too long")
            listed = _read_list(reader.take(length), file)
            for entry in listed.files:
                _write_entry(entry, reader, folder, file)
            reader.end()
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir():
                sync_folder(path)
        sync_folder(folder)
    except OSError as error:
        raise DeviceError(f"{error.filename or file}: {error.strerror}") from error
    return [entry.path for entry in listed.files]


def _describe(one: ArchivedFile) -> _Entry:
    """Return the entry of a file."""
    if isinstance(one.source, bytes):
        size, modified = len(one.source), 0
        digest = hashlib.sha256(one.source)
    else:
        try:
            with one.source.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256")
                status = os.fstat(opened.fileno())
        except OSError as error:
            raise DeviceError(f"{one.source}: cannot be read: {error.strerror}") from error
        size, modified = status.st_size, status.st_mtime_ns
    return _Entry(path=one.path, size=size, sha256=digest.hexdigest(), modified_ns=modified)


def _contents(listed: _List, files: Sequence[ArchivedFile]) -> Iterator[bytes]:
    """Yield what is encrypted, in pieces."""
    text = json.dumps(listed.model_dump()).encode()
    yield _LENGTH.pack(len(text)) + text
    for entry, one in zip(listed.files, files, strict=True):
        if isinstance(one.source, bytes):
            yield one.source
            continue
        digest = hashlib.sha256()
        with one.source.open("rb") as opened:
            while piece := opened.read(CHUNK_BYTES):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != entry.sha256:
            raise DeviceError(f"{one.source}: changed while it was read; stop what writes it")


def _check_list(listed: _List, file: Path) -> None:
    """Raise an error if a list has files that cannot be in an archive."""
    paths = [entry.path for entry in listed.files]
    if bad := [path for path in paths if not is_safe_path(path)]:
        raise DeviceError(f"{file}: {bad[0]!r} is no path of a client's file")
    folded = [path.casefold() for path in paths]
    folders = {
        "/".join(names[:end])
        for names in (path.split("/") for path in folded)
        for end in range(1, len(names))
    }
    if len(set(folded)) < len(folded) or folders & set(folded):
        raise DeviceError(f"{file}: two of its files have the same path")
    if (total := sum(entry.size for entry in listed.files)) > MOST_BYTES:
        raise DeviceError(f"{file}: {total} bytes; an archive holds at most {MOST_BYTES}")


def _read_list(text: bytes, file: Path) -> _List:
    try:
        listed = _List.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        raise _damaged(file, "its list of files cannot be read") from error
    _check_list(listed, file)
    return listed


def _write_entry(entry: _Entry, reader: "_Reader", folder: Path, file: Path) -> None:
    """Write one file, with its time of modification, and check its hash."""
    target, digest, left = folder / entry.path, hashlib.sha256(), entry.size
    target.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while left:
            piece = reader.take(min(left, CHUNK_BYTES))
            digest.update(piece)
            out.write(piece)
            left -= len(piece)
        out.flush()
        os.fsync(out.fileno())
    os.utime(target, ns=(entry.modified_ns, entry.modified_ns))
    if digest.hexdigest() != entry.sha256:
        raise _damaged(file, f"{entry.path} has another hash than listed")


def _key(passphrase: str, salt: bytes) -> AESGCM:
    return AESGCM(Scrypt(salt=salt, length=32, n=SCRYPT_COST, r=8, p=1).derive(passphrase.encode()))


def _nonce(number: int, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _seal(pieces: Iterator[bytes], key: AESGCM, header: bytes) -> Iterator[bytes]:
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
        DeviceError: at the first chunk that is not authentic.
    """
    header = opened.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise DeviceError(f"{file}: not a file of `samara client move`")
    _, version, salt = _HEADER.unpack(header)
    if version != _VERSION:
        raise DeviceError(f"{file}: has version {version}; update Samara, which knows {_VERSION}")
    key, number = _key(passphrase, salt), 0
    chunk = opened.read(CHUNK_BYTES + _TAG_BYTES)
    while chunk:
        following = opened.read(CHUNK_BYTES + _TAG_BYTES)
        try:
            yield key.decrypt(_nonce(number, not following), chunk, header)
        except InvalidTag:
            raise DeviceError(
                f"{file}: the passphrase is wrong, or the file is damaged or cut off; nothing was "
                "imported"
            ) from None
        chunk, number = following, number + 1


class _Reader:
    """Reads what the chunks of an archive hold together."""

    def __init__(self, chunks: Iterator[bytes], file: Path) -> None:
        self._chunks, self._file, self._buffer = chunks, file, b""

    def take(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            DeviceError: if there are fewer.
        """
        pieces = [self._buffer]
        while sum(map(len, pieces)) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                raise _damaged(self._file, "it ends too early")
            pieces.append(chunk)
        whole = b"".join(pieces)
        self._buffer = whole[size:]
        return whole[:size]

    def end(self) -> None:
        """Raise an error if something is left."""
        if self._buffer or any(self._chunks):
            raise _damaged(self._file, "something follows its last file")


def _damaged(file: Path, how: str) -> DeviceError:
    return DeviceError(f"{file}: {how}; nothing was imported")
