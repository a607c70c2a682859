"""Lock-free reading of a ledger's folder, even while a process writes it. The folder holds:

0000000001.seg   segment: the records from round 1 on
0000001000.snap  snapshot: the state after round 1000
0000001001.seg   segment: the records from round 1001 on
lock             held by the writer
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from samara.shared.errors import LedgerError
from samara.shared.protocol.ledger.records import (
    HASH_BYTES,
    LedgerHeader,
    Position,
    Record,
    TornRecordError,
    UnreadableError,
    read_records,
    read_segment_header,
    skip_records,
)

LOCK_FILE = "lock"
_SEGMENT, _SNAPSHOT = ".seg", ".snap"
_DAMAGE_REMEDY = "restore the folder from a backup, or begin a new run"


class DamagedError(LedgerError):
    """A ledger in a folder is damaged; the message names the place, the damage and the remedy."""


def without_remedy(error: Exception) -> str:
    """Return an error's message without the remedy for a damaged ledger."""
    return str(error).removesuffix(f"; {_DAMAGE_REMEDY}")


@contextmanager
def damage_explained(folder: Path) -> Iterator[None]:
    """Add the remedy, and the folder if no place is named, to errors about a ledger's damage.

    Args:
        folder: folder of the ledger that the block reads.

    Raises:
        DamagedError: if the block raises a LedgerError about damage.
    """
    try:
        yield
    except (DamagedError, UnreadableError):
        raise
    except LedgerError as error:
        place = "" if str(error).startswith(str(folder)) else f"{folder}: "
        raise _damaged(f"{place}{error}") from error


def _damaged(finding: str) -> DamagedError:
    return DamagedError(f"{finding}; {_DAMAGE_REMEDY}")


def segment_path(folder: Path, first: int) -> Path:
    """Return the path of the segment that begins with a round."""
    return folder / f"{first:010}{_SEGMENT}"


def snapshot_path(folder: Path, number: int) -> Path:
    """Return the path of the snapshot after a round."""
    return folder / f"{number:010}{_SNAPSHOT}"


def segment_paths(folder: Path) -> dict[int, Path]:
    """Return the paths of the segments by their first round, oldest first.

    Raises:
        LedgerError: if the folder cannot be read.
    """
    return _numbered(folder, _SEGMENT)


def snapshot_paths(folder: Path) -> dict[int, Path]:
    """Return the paths of the snapshots by their round, oldest first.

    Raises:
        LedgerError: if the folder cannot be read.
    """
    return _numbered(folder, _SNAPSHOT)


def _numbered(folder: Path, suffix: str) -> dict[int, Path]:
    try:
        paths = [path for path in folder.iterdir() if path.suffix == suffix]
    except OSError as error:
        raise UnreadableError(f"{folder}: cannot be read: {error.strerror}") from error
    return {int(path.stem): path for path in sorted(paths) if _is_number(path.stem)}


def _is_number(stem: str) -> bool:
    return len(stem) == 10 and stem.isascii() and stem.isdecimal()


@dataclass(frozen=True)
class Segment:
    """A segment file and the contents of its header.

    Attributes:
        path: path of the file.
        header: track, run and layout of the ledger.
        start: position before the first record.
        version: version of its format.
    """

    path: Path
    header: LedgerHeader
    start: Position
    version: int


def _read_segment(path: Path, file: BinaryIO) -> Segment:
    segment = Segment(path, *read_segment_header(file))
    if int(path.stem) != segment.start.round + 1:
        raise LedgerError(
            f"the segment begins with round {segment.start.round + 1}, but its name differs"
        )
    return segment


def read_segment(path: Path) -> Segment:
    """Read a segment's header.

    Raises:
        LedgerError: naming the file, if it is not a segment or does not match its name.
    """
    try:
        with path.open("rb") as file:
            return _read_segment(path, file)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
    except LedgerError as error:
        raise type(error)(f"{path}: {error}") from error


def last_hash(path: Path) -> bytes:
    """Return the last 32 bytes of a segment, which are the last record's hash if it is whole."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - HASH_BYTES))
        return file.read(HASH_BYTES)


def read_header(folder: Path) -> LedgerHeader:
    """Read the track, run and layout of the ledger in a folder.

    Raises:
        LedgerError: if the folder holds no ledger, or the ledger is damaged.
    """
    with damage_explained(folder):
        return read_segment(next(iter(_all_segments(folder).values()))).header


def _all_segments(folder: Path) -> dict[int, Path]:
    segments = segment_paths(folder)
    if not segments:
        raise LedgerError(f"{folder}: holds no segment of a ledger")
    return segments


def read_ledger(folder: Path, since: int | None = None, strict: bool = False) -> Iterator[Record]:
    """Yield the records after a round.

    An incomplete last record is skipped, because the writer may still be writing it. Segments begun
    after the start of the reading are not read.

    Args:
        folder: folder of the ledger.
        since: round before the first yielded record; None to begin with the oldest kept record.
        strict: whether an incomplete last record is an error.

    Raises:
        LedgerError: naming the file and the round, if a file is damaged or missing, or the ledger
            lacks the records after that round.
    """
    with damage_explained(folder):
        paths = _all_segments(folder)
    first = next(iter(paths)) if since is None else since + 1
    begun = [number for number in paths if number <= first]
    if not begun:
        raise LedgerError(
            f"{folder}: the rounds before {next(iter(paths))} are not kept; begin at a snapshot"
        )
    position: Position | None = None
    last = list(paths.values())[-1]
    for path in (path for number, path in paths.items() if number >= begun[-1]):
        try:
            with path.open("rb") as file:
                segment = _read_segment(path, file)
                start = segment.start
                if position is None:
                    start = skip_records(file, start, first - 1 - start.round)
                elif start != position:
                    raise LedgerError(
                        f"round {position.round + 1}: the record is missing, or the segment "
                        "does not follow the previous segment"
                    )
                position = start
                for record in read_records(file, start, segment.header.track):
                    yield record
                    position = record.position
        except FileNotFoundError as error:
            raise UnreadableError(
                f"{path}: was deleted by compaction while it was read; read the ledger again"
            ) from error
        except OSError as error:
            raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from error
        except UnreadableError as error:
            raise UnreadableError(f"{path}: {error}") from error
        except TornRecordError as error:
            if strict or path != last:
                raise _damaged(f"{path}: {error}") from error
        except LedgerError as error:
            raise _damaged(f"{path}: {error}") from error
