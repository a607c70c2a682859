"""Bytes of a file into a given place: through the system's page cache, or past it.

What is read past the page cache does not push out of it what other processes keep there.
"""

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from pathlib import Path
from threading import local

from shared.errors import ModelError

READERS = 4
"""Threads that read a block together: a disk answers several requests faster than one."""
PIECE_BYTES = 8 * 2**20
Read = Callable[[Path, int, memoryview], None]
"""Fill a place with the bytes of a file from there on, or raise ModelError."""
_ALIGNMENT = 4096
"""Of place, length and memory of a direct read: no disk in use has larger sectors."""
_own = local()


def read(file: Path, first: int, place: memoryview) -> None:
    """Through the page cache.

    Raises:
        ModelError: if the file is missing, truncated, or cannot be read.
    """
    _read(file, os.O_RDONLY, first, place, len(place))


def read_directly(file: Path, first: int, place: memoryview) -> None:
    """Past the page cache (O_DIRECT), by way of a page-aligned buffer of the thread.

    Raises:
        ModelError: if the file is missing, truncated, cannot be read, or not in this way.
    """
    if not hasattr(os, "O_DIRECT"):
        raise ModelError(_no_direct(file))
    before = first % _ALIGNMENT
    size = -(-(before + len(place)) // _ALIGNMENT) * _ALIGNMENT
    buffer: mmap | None = getattr(_own, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _own.buffer = mmap(-1, size)
    whole = memoryview(buffer)[:size]
    try:
        _read(file, os.O_RDONLY | os.O_DIRECT, first - before, whole, before + len(place))
        place[:] = whole[before : before + len(place)]
    finally:
        whole.release()


def measure_disk_rate(file: Path, pieces: int) -> float:
    """Bytes/s that so many pieces of a file's beginning come with, past the page cache.

    Raises:
        ModelError: as `read_directly`.
    """
    size = min(file.stat().st_size, pieces * PIECE_BYTES)
    starts = range(0, size, PIECE_BYTES)
    places = [memoryview(bytearray(min(PIECE_BYTES, size - start))) for start in starts]
    begun = time.perf_counter()
    with ThreadPoolExecutor(READERS) as readers:
        list(readers.map(read_directly, [file] * len(places), starts, places))
    return size / (time.perf_counter() - begun)


def _read(file: Path, flags: int, first: int, place: memoryview, needed: int) -> None:
    """Fill a place with at least so many bytes; a direct read may give more."""
    try:
        descriptor = os.open(file, flags)
        try:
            done = 0
            while done < needed:
                count = os.preadv(descriptor, [place[done:]], first + done)
                # A direct read stops between two pages only at the end of the file.
                ends = flags != os.O_RDONLY and count % _ALIGNMENT and done + count < needed
                if not count or ends:
                    raise ModelError(
                        f"{file}: is truncated: it ends before byte {first + needed:,}; "
                        "get it again"
                    )
                done += count
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.EINVAL and flags != os.O_RDONLY:
            raise ModelError(_no_direct(file)) from error
        raise ModelError(
            f"{file}: cannot be read: {error.strerror}; put it back, or load the model again"
        ) from error


def _no_direct(file: Path) -> str:
    return (
        f"{file}: the file system that it is on takes no direct reads; leave model.stream-direct "
        "out, or put the file on a disk of this machine"
    )
