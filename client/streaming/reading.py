"""Reading of file ranges into memory, through the system's page cache or bypassing it.

Direct reads bypass the page cache, so they do not evict the pages of other processes.
"""

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from pathlib import Path
from threading import local

from samara.shared.errors import ModelError

READERS = 4
"""Number of threads that read a block together. Disks serve parallel requests faster."""
PIECE_BYTES = 8 * 2**20
ReadRange = Callable[[Path, int, memoryview], None]
"""A function that fills a buffer with a file's bytes from an offset on. It may raise ModelError."""
_ALIGNMENT = 4096
"""Alignment in bytes of a direct read's offset, length and memory. Disk sectors are not larger."""
_thread = local()


def read(file: Path, offset: int, buffer: memoryview) -> None:
    """Fill a buffer with a file's bytes from an offset on, through the page cache.

    Raises:
        ModelError: if the file is missing, truncated, or cannot be read.
    """
    _read(file, os.O_RDONLY, offset, buffer, len(buffer))


def read_directly(file: Path, offset: int, buffer: memoryview) -> None:
    """Fill a buffer with a file's bytes from an offset on, bypassing the page cache (O_DIRECT).

    Each thread keeps a page-aligned buffer for direct reads.

    Raises:
        ModelError: if the file is missing, truncated or unreadable, or its file system does not
            support direct reads.
    """
    if not hasattr(os, "O_DIRECT"):
        raise ModelError(_no_direct_reads(file))
    before = offset % _ALIGNMENT
    size = -(-(before + len(buffer)) // _ALIGNMENT) * _ALIGNMENT
    aligned: mmap | None = getattr(_thread, "aligned", None)
    if aligned is None or len(aligned) < size:
        aligned = _thread.aligned = mmap(-1, size)
    pages = memoryview(aligned)[:size]
    try:
        _read(file, os.O_RDONLY | os.O_DIRECT, offset - before, pages, before + len(buffer))
        buffer[:] = pages[before : before + len(buffer)]
    finally:
        pages.release()


def measure_disk_rate(file: Path, pieces: int) -> float:
    """Return the measured rate of direct reads of a file's first pieces, in bytes/s.

    Args:
        file: file to read.
        pieces: number of pieces of `PIECE_BYTES`.

    Raises:
        ModelError: if `read_directly` cannot read the file.
    """
    size = min(file.stat().st_size, pieces * PIECE_BYTES)
    offsets = range(0, size, PIECE_BYTES)
    buffers = [memoryview(bytearray(min(PIECE_BYTES, size - offset))) for offset in offsets]
    begun = time.perf_counter()
    with ThreadPoolExecutor(READERS) as readers:
        list(readers.map(read_directly, [file] * len(buffers), offsets, buffers))
    return size / (time.perf_counter() - begun)


def _read(file: Path, flags: int, offset: int, buffer: memoryview, needed: int) -> None:
    """Read at least `needed` bytes into a buffer; a direct read may read more."""
    try:
        descriptor = os.open(file, flags)
        try:
            done = 0
            while done < needed:
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
                # A direct read returns part of a page only at the end of the file.
                ends = flags != os.O_RDONLY and count % _ALIGNMENT and done + count < needed
                if not count or ends:
                    raise ModelError(
                        f"{file}: is truncated: it ends before byte {offset + needed:,}; "
                        "get the file again"
                    )
                done += count
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.EINVAL and flags != os.O_RDONLY:
            raise ModelError(_no_direct_reads(file)) from error
        raise ModelError(
            f"{file}: cannot be read: {error.strerror}; put it back, or load the model again"
        ) from error


def _no_direct_reads(file: Path) -> str:
    return (
        f"{file}: the file system does not support direct reads; move the file to a disk of this "
        "machine"
    )
