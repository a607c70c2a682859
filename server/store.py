"""The folder of a run: ledger, layout, metrics and result, each written so that it survives.

OUT/ledger         the round deltas (shared/ledger.py)
OUT/layout.json    what the scalars mean
OUT/metrics.jsonl  one JSON object per round and per evaluation, as they happen
OUT/result.json    the summary, written at the end
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.errors import LedgerError, SamaraError
from shared.files import write_durably
from shared.layout import Layout
from shared.ledger import Ledger, LedgerHeader, Record, follow, read_header, read_records
from shared.replay import check_fits, digest, replay, zero_state
from shared.round_delta import RoundDelta

LEDGER_FILE, LAYOUT_FILE = "ledger", "layout.json"
METRICS_FILE, RESULT_FILE = "metrics.jsonl", "result.json"


class RunStore:
    """The open run of a server: its state, and the folder that outlives the process.

    Attributes:
        folder: OUT.
        layout: of the adapter.
        ledger: of the global track.
        state: int64 [d], after the ledger's last round.
        digest: of the state, 32 bytes.
        events: what happened so far, one dictionary per round and per evaluation.
    """

    def __init__(self, folder: Path, layout: Layout, header: LedgerHeader) -> None:
        """Begin a run, or continue the one in the folder by replaying its ledger.

        Raises:
            LedgerError: if the folder holds another run, or a damaged one.
        """
        self.folder, self.layout = folder, layout
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(f"{folder}: cannot be created: {error.strerror}") from error
        layout_file = folder / LAYOUT_FILE
        if not layout_file.exists():
            write_durably(layout_file, (layout.to_json() + "\n").encode())
        elif read_layout(folder).hash != layout.hash:
            raise LedgerError(f"{layout_file}: another layout than this run's; use another folder")
        self.events = _read_events(folder / METRICS_FILE)
        self.ledger = Ledger(folder / LEDGER_FILE, header)
        self.state = zero_state(layout.size)
        try:
            for record in self.ledger.records():
                self.state = follow(self.state, record, layout.hash, layout.distribution)
        except LedgerError as error:
            self.ledger.close()
            raise LedgerError(f"{self.ledger.path}: {error}") from error
        self.digest = digest(layout.hash, self.state)

    def check(self, delta: RoundDelta) -> None:
        """Refuse a round that does not fit the state.

        Raises:
            ReplayError: if it does not; nothing has happened then.
        """
        check_fits(self.state, delta.changes)

    def append(self, delta: RoundDelta) -> int:
        """Apply a round and put it on the disk; returns the bytes added to the ledger.

        Raises:
            ReplayError: if it does not fit; nothing has happened then.
            LedgerError: if it cannot be written; nothing has happened then.
        """
        state = replay(self.state, delta.scalar_groups(), self.layout.distribution)
        end_digest = digest(self.layout.hash, state)
        size = self.ledger.append(delta, end_digest)
        self.state, self.digest = state, end_digest
        return size

    def note(self, event: dict[str, Any]) -> None:
        """Append an event to the metrics."""
        self.events.append(event)
        with (self.folder / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, result: dict[str, Any]) -> None:
        """Write the summary."""
        text = json.dumps(result, indent=2, sort_keys=True) + "\n"
        write_durably(self.folder / RESULT_FILE, text.encode())

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


def _read_events(file: Path) -> list[dict[str, Any]]:
    """Events of a metrics file, which is first cut to its last whole line.

    Raises:
        SamaraError: if a whole line is damaged.
    """
    if not file.exists():
        return []
    data = file.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        write_durably(file, whole)
    events = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            events.append(json.loads(line))
        except ValueError as error:
            raise SamaraError(f"{file}:{number}: damaged: {error}; delete the line") from error
    return events


def read_layout(folder: Path) -> Layout:
    """The layout of a run.

    Raises:
        SamaraError: if the file is missing or damaged.
    """
    file = folder / LAYOUT_FILE
    try:
        return Layout.from_json(file.read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise SamaraError(f"{file}: cannot be read: {error}; is {folder} a run?") from error
    except SamaraError as error:
        raise SamaraError(f"{file}: {error}") from error


def read_result(folder: Path) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        SamaraError: if the file is missing or damaged.
    """
    file = folder / RESULT_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SamaraError(
            f"{file}: cannot be read: {error.strerror}; has the run ended?"
        ) from error
    except ValueError as error:
        raise SamaraError(f"{file}: damaged: {error}; run it again") from error
    if not isinstance(content, dict):
        raise SamaraError(f"{file}: damaged: not a JSON object; run it again")
    return content


def replayed(folder: Path) -> Iterator[tuple[Record, NDArray[np.int64]]]:
    """Replay a run's ledger from nothing, proving every digest on the way.

    Yields:
        Each record with the state after it.

    Raises:
        SamaraError: at the first thing that is damaged, naming file and round.
    """
    layout = read_layout(folder)
    path = folder / LEDGER_FILE
    if read_header(path).layout_hash != layout.hash:
        raise LedgerError(f"{path}: round 0: the header is for another layout than {LAYOUT_FILE}")
    state = zero_state(layout.size)
    for record in read_records(path):
        try:
            state = follow(state, record, layout.hash, layout.distribution)
        except LedgerError as error:
            raise LedgerError(f"{path}: {error}") from error
        yield record, state
