"""Crash-safe file writes, hashes, and file headers.

A file that must survive a crash is written under another name, fsynced and renamed.
"""

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, EISDIR
from pathlib import Path
from typing import Any

from samara.shared.errors import LedgerError, SamaraError

UNFINISHED = ".new"
"""Suffix of a file that is being written, or whose writing a crash interrupted."""
_MAX_HEADER_BYTES = 2**16
_KIND_BYTES = 1024
"""Number of first bytes in which a file of a kind has the kind's mark."""


def file_hash(path: Path) -> bytes:
    """Return the SHA-256 of a file, 32 bytes.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def write_durably(path: Path, *parts: bytes | memoryview) -> None:
    """Write a whole file so that a crash leaves either the old content or the new.

    Raises:
        OSError: if writing fails; the old content is then unchanged, unless only the fsync of the
            folder failed.
    """
    with _replacing(path) as temporary, temporary.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file of any size so that a crash leaves either no target or a whole one.

    Raises:
        OSError: if reading or writing fails.
    """
    with (
        _replacing(target) as temporary,
        source.open("rb") as original,
        temporary.open("wb") as copy,
    ):
        shutil.copyfileobj(original, copy)
        copy.flush()
        os.fsync(copy.fileno())
    sync_folder(target.parent)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path`, or is deleted if the block fails.

    Raises:
        OSError: if the block raises it, with the file name added if it is missing, or if the path
            is a device, a pipe or a socket, which a file must not replace.
    """
    _check_no_other_entry(path)
    temporary = path.with_name(path.name + UNFINISHED)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise


def _check_no_other_entry(path: Path) -> None:
    """Check that a path is a regular file, or is missing.

    Raises:
        OSError: if it is something else.
    """
    if path.is_dir():  # as "" and ".." are
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(EEXIST, "is not a regular file", str(path))


def write_requested(path: Path, data: bytes, kind: bytes) -> None:
    """Write a whole file that a user requested, as `write_durably` does.

    Args:
        path: path of the file.
        data: content of the file.
        kind: mark near the beginning of every file of this kind. An existing file without it is
            not replaced, unless it is empty.

    Raises:
        SamaraError: if the file cannot be written, or is of another kind, such as the user's data.
    """
    check_requested(path, kind)
    try:
        write_durably(path, data)
    except OSError as error:
        raise SamaraError(f"{path}: cannot be written: {error.strerror}") from error


def check_requested(path: Path, kind: bytes) -> None:
    """Check, before long work, that `write_requested` will be able to write a file.

    Raises:
        SamaraError: as `write_requested` does.
    """
    try:
        _check_no_other_entry(path)
        if path.exists():
            with path.open("rb") as file:
                begin = file.read(_KIND_BYTES)
            if begin and kind not in begin:
                raise SamaraError(f"{path}: exists, and is another kind of file; name a new file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SamaraError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def disk_errors_explained(file: Path) -> Iterator[None]:
    """Convert disk errors while writing a run's file into errors with a remedy.

    Raises:
        LedgerError: if the block raises an OSError.
    """
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"{file}: cannot be written: {error.strerror}; free disk space, then run the same "
            "command"
        ) from error


def write_once(path: Path, data: bytes) -> None:
    """Write a whole file as `write_durably` does, unless it already exists.

    Raises:
        OSError: if writing fails.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    write_durably(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def cache_folder(name: str) -> Path:
    """Return a cache folder of this machine: ``samara/NAME`` in ``~/.cache`` or XDG_CACHE_HOME.

    Raises:
        RuntimeError: if there is no home folder.
    """
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "samara" / name


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names of its files are durable.

    Raises:
        OSError: if the fsync fails.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, and fsync their names.

    Raises:
        OSError: if writing fails, or a file of that name exists.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def check_writable(folder: Path) -> None:
    """Check that a folder can be written, or could be created, without changing the disk.

    Raises:
        OSError: if the folder, or its nearest existing parent, cannot be written.
    """
    while not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def make_private_folder(folder: Path) -> None:
    """Create a folder as `make_folder` does, or make an existing one private to its owner.

    Raises:
        OSError: if writing fails, or the folder belongs to another user.
    """
    make_folder(folder)
    folder.chmod(0o700)


def write_secret(path: Path, secret: bytes) -> None:
    """Write a file that only its owner can ever read.

    A crash leaves either the old content or the new, as in `write_durably`.

    Raises:
        OSError: if writing fails.
    """
    temporary = path.with_name(path.name + UNFINISHED)
    temporary.unlink(missing_ok=True)  # an old file may have other permissions
    temporary.touch(0o600)
    write_durably(path, secret)


def read_safetensors_metadata(data: bytes, key: str) -> dict[str, Any]:
    """Return the JSON object under a key of the metadata of a safetensors file.

    Args:
        data: content of the file.
        key: key in the metadata.

    Raises:
        ValueError, KeyError, TypeError: if there is no such object.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("truncated, or not a safetensors file")
    content: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][key])
    return content
