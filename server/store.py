"""The folder of a run: ledger, layout, metrics and result, each written so that it survives.

OUT/ledger/        the round deltas (shared/ledger)
OUT/layout.json    what the scalars mean
OUT/metrics.jsonl  one JSON object per round and per evaluation, as they happen
OUT/result.json    the summary, written at the end
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.errors import LedgerError, SamaraError
from shared.events import append_event, read_events
from shared.files import make_folder, write_durably
from shared.layout import Layout
from shared.ledger.ledger import Ledger
from shared.ledger.proving import Step, proven
from shared.ledger.reading import read_header
from shared.ledger.records import LedgerHeader
from shared.result import RESULT_FILE

LEDGER_FOLDER, LAYOUT_FILE = "ledger", "layout.json"
METRICS_FILE = "metrics.jsonl"


class RunStore:
    """The open run of a server: the folder that outlives the process.

    Attributes:
        folder: OUT.
        layout: of the adapter.
        ledger: of the global track, with its state.
        last: the event that this process noted last; empty before the first.
    """

    def __init__(
        self, folder: Path, layout: Layout, header: LedgerHeader, snapshot_every: int
    ) -> None:
        """Begin a run, or continue the one in the folder.

        Args:
            folder: OUT.
            layout: of the adapter.
            header: what the ledger belongs to.
            snapshot_every: rounds between snapshots of the ledger; 0 makes none.

        Raises:
            LedgerError: if the folder holds another run, or a damaged one.
        """
        self.folder, self.layout = folder, layout
        self.last: dict[str, Any] = {}
        ensure_layout(folder, layout)
        _check_same_run(folder, header)
        self.ledger = Ledger(folder / LEDGER_FOLDER, header, layout, snapshot_every)
        told = [event.get("round", 0) for event in self.events() if event.get("event") == "round"]
        if told and told[-1] > self.ledger.position.round:
            self.ledger.close()
            raise LedgerError(
                f"{self.ledger.folder}: it ends at round {self.ledger.position.round}, and "
                f"{METRICS_FILE} tells of round {told[-1]}: rounds were lost; restore the folder "
                f"or delete the later lines of {METRICS_FILE}"
            )

    def events(self) -> list[dict[str, Any]]:
        """What happened so far, one dictionary per round and per evaluation, read off the disk.

        A long run, or one that many strangers disturb, has more of them than memory should hold.
        """
        return read_events(self.folder / METRICS_FILE)

    def note(self, event: dict[str, Any]) -> None:
        """Append an event to the metrics.

        Raises:
            LedgerError: if the disk refuses; what was written of it is cut off at the next opening.
        """
        self.last = event
        with _a_message_for(self.folder / METRICS_FILE):
            append_event(self.folder / METRICS_FILE, event)

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


@contextmanager
def _a_message_for(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"{file}: cannot be written: {error.strerror}; make room, then run the same command"
        ) from error


def ensure_layout(folder: Path, layout: Layout) -> None:
    """Make the folder of a run, with its layout.

    Raises:
        LedgerError: if it cannot be written, or holds another layout.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise LedgerError(f"{folder}: cannot be created: {error.strerror}") from error
    layout_file = folder / LAYOUT_FILE
    if not layout_file.exists():
        with _a_message_for(layout_file):
            write_durably(layout_file, (layout.to_json() + "\n").encode())
    elif read_layout(folder).hash != layout.hash:
        raise LedgerError(f"{layout_file}: another layout than this run's; use another folder")


def _check_same_run(folder: Path, header: LedgerHeader) -> None:
    """Refuse to continue a ledger that was begun under another run id.

    Raises:
        LedgerError: naming both reasons that there are for it.
    """
    try:
        stored = read_header(folder / LEDGER_FOLDER).run_id
    except LedgerError:
        return  # there is no ledger yet, or a damaged one, which opening it repairs or refuses
    if stored != header.run_id:
        raise LedgerError(
            f"{folder}: holds another run, {stored.hex()}, and these settings make run "
            f"{header.run_id.hex()}: either settings, model or number of clients are not those "
            "that it was begun with, or this run was made by an earlier Samara, whose run ids do "
            "not continue. Verify or export it, or start a new run in another folder"
        )


def finish(folder: Path, result: dict[str, Any]) -> None:
    """Write the summary of a run.

    Raises:
        LedgerError: if the disk refuses; there is none then.
    """
    text = json.dumps(result, indent=2, sort_keys=True) + "\n"
    with _a_message_for(folder / RESULT_FILE):
        write_durably(folder / RESULT_FILE, text.encode())


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


def cluster_folders(run: Path) -> list[Path]:
    """Where the clusters of a run lie; none if it is one federation."""
    return sorted(run.glob("cluster-*"), key=lambda path: (len(path.name), path.name))


def ledger_of(run: Path) -> Path:
    """The ledger of a run.

    Raises:
        SamaraError: if every cluster has its own.
    """
    if clusters := cluster_folders(run):
        raise SamaraError(f"{run}: every cluster has a ledger; name one, such as {clusters[0]}")
    return run / LEDGER_FOLDER


def replay_run(folder: Path) -> Iterator[Step]:
    """Replay a run's ledger, proving every digest on the way; see `proven`.

    Raises:
        SamaraError: at the first thing that is damaged, naming file and round.
    """
    return proven(ledger_of(folder), read_layout(folder))
