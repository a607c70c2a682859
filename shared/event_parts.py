"""Earlier parts of a long event file: compressed files beside it, which are read before it.

`metrics.jsonl` of a run that goes on for months has `metrics.00001.jsonl.gz`, and so on.
"""

import gzip
import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

from samara.shared.errors import SamaraError
from samara.shared.files import sync_folder, write_durably

PART_BYTES = 4 * 2**20
"""Bytes from which on a file's lines become a part of their own."""
_PART = re.compile(r"(.+)\.\d{5,}(\.jsonl)(?:\.gz)?")


def close_long_part(file: Path) -> None:
    """Begin an event file anew if it is long, and compress its earlier lines.

    A process that is killed meanwhile leaves all lines where readers find them, and the next call
    goes on.

    Args:
        file: event file with whole lines only; no other process may write to it.

    Raises:
        OSError: if a file cannot be written.
    """
    if file.exists() and file.stat().st_size >= PART_BYTES:
        os.replace(file, _part(file, count_parts(file) + 1))
        file.touch()
        sync_folder(file.parent)
    for plain in [path for path in _parts(file) if path.suffix != ".gz"]:
        write_durably(plain.with_name(f"{plain.name}.gz"), gzip.compress(plain.read_bytes()))
        plain.unlink()


def count_parts(file: Path) -> int:
    """Return the number of an event file's earlier parts."""
    return len({path.name.removesuffix(".gz") for path in _parts(file)})


def read_part(file: Path, number: int) -> bytes:
    """Return the lines of an earlier part.

    Args:
        file: event file.
        number: number of the part, from 1 on.

    Raises:
        OSError: if it cannot be read.
        SamaraError: if it is damaged.
    """
    plain = _part(file, number)
    with suppress(FileNotFoundError):  # it is compressed, perhaps since a moment ago
        return plain.read_bytes()
    compressed = plain.with_name(f"{plain.name}.gz")
    try:
        lines = gzip.decompress(compressed.read_bytes())
        if not lines:
            raise EOFError("no part is empty")
        return lines
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SamaraError(f"{compressed}: damaged; restore it from a backup") from error


def is_part(path: Path) -> bool:
    """Return whether a file is an earlier part of an event file, by its name."""
    return _PART.fullmatch(path.name) is not None


def _parts(file: Path) -> list[Path]:
    """Return the files of the earlier parts; one that is being compressed has two."""
    return [path for path in file.parent.glob(f"{file.stem}.*") if _is_part_of(path, file)]


def _is_part_of(path: Path, file: Path) -> bool:
    found = _PART.fullmatch(path.name)
    return found is not None and found[1] + found[2] == file.name


def _part(file: Path, number: int) -> Path:
    return file.with_name(f"{file.stem}.{number:05}{file.suffix}")
