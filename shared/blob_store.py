"""The blob store: files that are named by their SHA-256, and parts of files that still arrive.

A blob is a file that a client needs once, such as an adapter's basis. Its name is made of nothing
but its hash, so that bytes from a network never choose a path. A blob is verified before it is
used. What arrives in parts is kept in a file beside it, so that a restart continues there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from samara.shared.errors import BlobError
from samara.shared.files import UNFINISHED, cache_folder, file_hash, make_folder, sync_folder

HASH_BYTES = 32
MAX_BLOB_BYTES = 256 * 2**20
"""Largest blob, in bytes."""
MAX_STORE_BYTES = 4 * 2**30
"""Total size of a store, in bytes, above which the least recently used blobs are deleted."""
PREFIX = "sha256:"
"""The beginning of a setting's value that names a blob by its hash."""
_PART = ".part"
_READ_BYTES = 2**20


def blob_hash(path: Path) -> bytes:
    """Return the SHA-256 of a file, 32 bytes.

    Raises:
        BlobError: if it cannot be read.
    """
    try:
        return file_hash(path)
    except OSError as error:
        raise BlobError(f"{path}: cannot be read: {error.strerror}") from error


def to_reference(blob: bytes) -> str:
    """Return a blob's hash as the value of a setting, ``sha256:HEX``."""
    return PREFIX + blob.hex()


def parse_reference(value: str) -> bytes | None:
    """Return the hash in a setting's value, 32 bytes; None if the value does not name a hash.

    Raises:
        BlobError: if what follows ``sha256:`` is not 64 lower-case hexadecimal digits.
    """
    if not value.startswith(PREFIX):
        return None
    digits = value.removeprefix(PREFIX)
    if len(digits) != 2 * HASH_BYTES or not set(digits) <= set("0123456789abcdef"):
        raise BlobError(f"{value!r}: write {PREFIX} and 64 lower-case hexadecimal digits")
    return bytes.fromhex(digits)


class BlobStore:
    """A folder of blobs.

    Args:
        folder: folder of the store, made when the first blob is written; this machine's by default.
        max_bytes: total size above which the least recently used blobs are deleted.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_STORE_BYTES) -> None:
        self.folder, self._max_bytes = folder or cache_folder("blobs"), max_bytes

    def find(self, blob: bytes) -> Path | None:
        """Return the file of a blob after verifying its content; None if it is not here.

        A damaged file is deleted, so that the blob can be stored again.

        Raises:
            BlobError: if the file cannot be read.
        """
        path = self._path(blob)
        if not path.is_file():
            return None
        is_sound = blob_hash(path) == blob
        with suppress(OSError):  # a store of another user is only read
            if is_sound:
                os.utime(path)
            else:
                path.unlink()
        return path if is_sound else None

    def add(self, source: Path) -> bytes:
        """Copy a file into the store, and return its hash; the blob is then on the disk.

        Raises:
            BlobError: if the file is empty, too large or cannot be read, or the store cannot be
                written.
        """
        try:
            size = source.stat().st_size
        except OSError as error:
            raise BlobError(f"{source}: cannot be read: {error.strerror}") from error
        if not source.is_file():
            raise BlobError(f"{source}: not a file")
        if not 1 <= size <= MAX_BLOB_BYTES:
            raise BlobError(
                f"{source}: {size} bytes; a blob has 1 to {MAX_BLOB_BYTES}, since every client "
                "fetches it"
            )
        blob = blob_hash(source)
        if self.find(blob) is None:
            with self._storage_errors():
                make_folder(self.folder)
                copy = self._path(blob).with_suffix(f".{os.getpid()}{UNFINISHED}")
                try:
                    with source.open("rb") as original, copy.open("wb") as file:
                        _copy(original, file)
                    self._finish(copy, blob)
                finally:
                    copy.unlink(missing_ok=True)
        return blob

    def received_bytes(self, blob: bytes) -> int:
        """Return how many bytes of a blob have arrived in parts."""
        try:
            return self._part(blob).stat().st_size
        except OSError:
            return 0

    def held_bytes(self, blob: bytes) -> int:
        """Return how many bytes of a blob are here, whole or in parts, without verifying them."""
        try:
            return self._path(blob).stat().st_size
        except OSError:
            return self.received_bytes(blob)

    def receive(self, blob: bytes, size: int, offset: int, content: bytes | memoryview) -> int:
        """Append a part of a blob to what has arrived; it is then on the disk.

        A part that does not follow what has arrived is left out. With the last part the content is
        verified, and a wrong one is deleted.

        Args:
            blob: hash of the whole blob.
            size: size of the whole blob in bytes, as the sender declares it.
            offset: position of the part in the blob.
            content: bytes of the part.

        Returns:
            The position of the next part that is wanted; `size` if the blob is complete.

        Raises:
            BlobError: if the size is out of range, the content has another hash, or the store
                cannot be written.
        """
        if not (1 <= size <= MAX_BLOB_BYTES and content and offset + len(content) <= size):
            raise BlobError(
                f"a part of blob {blob.hex()[:12]} is refused: {len(content)} bytes at {offset} of "
                f"{size}, where at most {MAX_BLOB_BYTES} are allowed"
            )
        if self.find(blob) is not None:
            return size
        part, received = self._part(blob), self.received_bytes(blob)
        with self._storage_errors():
            if received > size:
                part.unlink()
                received = 0
            if offset != received:
                return received
            make_folder(self.folder)
            with part.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if offset + len(content) == size:
                self._finish(part, blob)
            else:
                self._delete_oldest(keep=part)
        return offset + len(content)

    def _finish(self, written: Path, blob: bytes) -> None:
        """Give a written file the name of its blob; delete it if its hash is another one."""
        if blob_hash(written) != blob:
            written.unlink()
            raise BlobError(
                f"what was stored as blob {blob.hex()[:12]} has another hash and was deleted; it "
                "was damaged on its way, or its sender is not to be trusted"
            )
        os.replace(written, self._path(blob))
        sync_folder(self.folder)
        self._delete_oldest(keep=self._path(blob))

    def _delete_oldest(self, keep: Path) -> None:
        """Delete the least recently used files until the store is within its size."""
        files = [(file.stat(), file) for file in self.folder.iterdir() if file.is_file()]
        total = sum(stat.st_size for stat, _ in files)
        for stat, file in sorted(files, key=lambda pair: pair[0].st_mtime_ns):
            if total <= self._max_bytes:
                break
            if file != keep:
                file.unlink(missing_ok=True)
                total -= stat.st_size

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Turn an error of the file system into one that names the store."""
        try:
            yield
        except OSError as error:
            raise BlobError(f"{self.folder}: cannot be written: {error.strerror}") from error

    def _path(self, blob: bytes) -> Path:
        return self.folder / blob.hex()

    def _part(self, blob: bytes) -> Path:
        return self.folder / (blob.hex() + _PART)


def _copy(original: BinaryIO, file: BinaryIO) -> None:
    """Copy a file, and fsync the copy."""
    while piece := original.read(_READ_BYTES):
        file.write(piece)
    file.flush()
    os.fsync(file.fileno())
