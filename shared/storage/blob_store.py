"""The blob store: files named by their SHA-256, and partly received files.

A blob is a file that a server sends to a client once, such as an adapter's basis. The blob's hash
is its file name, so a sender cannot choose a path. The hash is verified before each use. Received
parts are kept in a separate file, so that a transfer continues after a restart.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from samara.shared.errors import BlobError, ConfigError, MissingBlobError
from samara.shared.storage.files import (
    UNFINISHED,
    cache_folder,
    file_hash,
    make_folder,
    sync_folder,
)

HASH_BYTES = 32
MAX_BLOB_BYTES = 256 * 2**20
"""Largest blob, in bytes."""
MAX_STORE_BYTES = 4 * 2**30
"""Total size in bytes above which a store deletes its least recently used blobs."""
PREFIX = "sha256:"
"""Prefix of the value of a setting that names a blob by its hash."""
_PART = ".part"
_READ_BYTES = 2**20


def blob_hash(path: Path) -> bytes:
    """Return the SHA-256 of a file, 32 bytes.

    Raises:
        BlobError: if the file cannot be read.
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
        BlobError: if the value begins with ``sha256:`` and does not continue with 64 lower-case
            hexadecimal digits.
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
        folder: folder of the store, created with the first blob; this machine's store by default.
        max_bytes: total size above which the least recently used blobs are deleted.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = MAX_STORE_BYTES) -> None:
        self.folder, self._max_bytes = folder or cache_folder("blobs"), max_bytes

    def find(self, blob: bytes) -> Path | None:
        """Return the file of a blob after verifying its content; None if it is missing.

        A damaged file is deleted, so that the blob can be stored again.

        Raises:
            BlobError: if the file cannot be read.
        """
        path = self._path(blob)
        if not path.is_file():
            return None
        is_sound = blob_hash(path) == blob
        with suppress(OSError):  # the files of another user's store cannot be changed
            if is_sound:
                os.utime(path)
            else:
                path.unlink()
        return path if is_sound else None

    def add(self, source: Path) -> bytes:
        """Copy a file durably into the store, and return its hash.

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
                f"{source}: {size} bytes; a blob has 1 to {MAX_BLOB_BYTES} bytes, because every "
                "client fetches it"
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
        """Return the number of received bytes of an incomplete blob."""
        try:
            return self._part(blob).stat().st_size
        except OSError:
            return 0

    def held_bytes(self, blob: bytes) -> int:
        """Return the number of bytes of a blob on this machine, without checking their hash."""
        try:
            return self._path(blob).stat().st_size
        except OSError:
            return self.received_bytes(blob)

    def receive(self, blob: bytes, size: int, offset: int, content: bytes | memoryview) -> int:
        """Append a part of a blob durably to the received bytes.

        A part that does not begin where the received bytes end is ignored. After the last part the
        blob's hash is verified, and a blob with a wrong hash is deleted.

        Args:
            blob: hash of the whole blob.
            size: declared size of the whole blob in bytes.
            offset: position of the part in the blob.
            content: bytes of the part.

        Returns:
            The position of the next missing part; `size` if the blob is complete.

        Raises:
            BlobError: if the size is out of range, the content has another hash, or the store
                cannot be written.
        """
        if not (1 <= size <= MAX_BLOB_BYTES and content and offset + len(content) <= size):
            raise BlobError(
                f"a part of blob {blob.hex()[:12]} is refused: {len(content)} bytes at offset "
                f"{offset} of {size}; a blob has at most {MAX_BLOB_BYTES} bytes"
            )
        if self.find(blob) is not None:
            return size
        part = self._part(blob)
        received = self.received_bytes(blob)
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
        """Rename a written file to its blob's name, or delete it if its hash is wrong."""
        if blob_hash(written) != blob:
            written.unlink()
            raise BlobError(
                f"the file received as blob {blob.hex()[:12]} has another hash and was deleted; "
                "either the transfer damaged it, or its sender cannot be trusted"
            )
        os.replace(written, self._path(blob))
        sync_folder(self.folder)
        self._delete_oldest(keep=self._path(blob))

    def _delete_oldest(self, keep: Path) -> None:
        """Delete the least recently used blobs until the store is not larger than `max_bytes`."""
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
        """Raise a `BlobError` that names the store for an OSError of the block."""
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


def resolve_blob(value: str, store: BlobStore, key: str) -> Path:
    """Return the file that a setting's value names, by path or by hash.

    A folder stands for its file with the name of the setting: `adapter.start` = ``RUN`` means
    ``RUN/start.safetensors``.

    Args:
        value: a path, or ``sha256:HEX``.
        store: store in which hashes are looked up.
        key: dotted key of the setting, for error messages.

    Raises:
        ConfigError: if the value is neither a file nor a hash.
        MissingBlobError: if the store lacks the blob.
    """
    try:
        blob = parse_reference(value)
    except BlobError as error:
        raise ConfigError(f"{key}: {error}") from error
    if blob is None:
        path = Path(value).expanduser()
        if path.is_dir():
            path /= f"{key.rpartition('.')[2]}.safetensors"
        if not path.is_file():
            raise ConfigError(f"{key}: {path}: there is no such file")
        return path
    if stored := store.find(blob):
        return stored
    raise MissingBlobError(
        f"{key}: blob {blob.hex()[:12]} is not in {store.folder}. The server of a live run sends "
        "it; for other runs give the path of its file",
        (int.from_bytes(blob[:4]), store.received_bytes(blob)),
    )
