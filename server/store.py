"""The folder of a run, which holds ledger, layout, metrics and result, and survives a crash.

OUT/ledger/            round deltas (shared/protocol/ledger)
OUT/layout.json        layout of the trained numbers
OUT/metrics.jsonl      one JSON object per round and per evaluation, in order
OUT/next_event.json    the event of a round that is about to be appended to the ledger
OUT/result.json        the result, written at the end
OUT/start.safetensors  the global model, for `adapter.start` of another run
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samara.shared.errors import LedgerError, SamaraError
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_header
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.ledger.verification import VerifiedRound, verify_ledger
from samara.shared.results.result import RESULT_FILE
from samara.shared.storage.events import read_events
from samara.shared.storage.files import disk_errors_explained, make_folder, write_durably

log = logging.getLogger("samara.server")

LEDGER_FOLDER, LAYOUT_FILE = "ledger", "layout.json"
METRICS_FILE, NEXT_EVENT_FILE = "metrics.jsonl", "next_event.json"


class RunStore:
    """The open folder of a run.

    Attributes:
        folder: the folder, OUT.
        layout: layout of the adapter.
        ledger: open ledger of the global track, with the replayed state.
    """

    def __init__(
        self, folder: Path, layout: Layout, header: LedgerHeader, snapshot_every: int
    ) -> None:
        """Begin a run, or continue the run in the folder.

        Args:
            folder: the folder, OUT.
            layout: layout of the adapter.
            header: header of the ledger, with run id and track.
            snapshot_every: rounds between snapshots of the ledger; 0 for no snapshots.

        Raises:
            LedgerError: if the folder holds another run, or is damaged.
        """
        self.folder, self.layout = folder, layout
        ensure_layout(folder, layout)
        _check_same_run(folder, header)
        self.ledger = Ledger(folder / LEDGER_FOLDER, header, layout, snapshot_every)
        if self.ledger.recovered:
            log.warning("%s", self.ledger.recovered)
        last_round = self.ledger.position.round
        events = self.events()
        recorded = [event.get("round", 0) for event in events if event.get("event") == "round"]
        if recorded and recorded[-1] > last_round:
            self.ledger.close()
            raise LedgerError(
                f"{self.ledger.folder}: the ledger ends at round {last_round}, but {METRICS_FILE} "
                f"at round {recorded[-1]}: rounds were lost; restore a backup, or delete the "
                f"later lines of {METRICS_FILE}"
            )

    def events(self) -> list[dict[str, Any]]:
        """Read the events so far from disk, one dictionary per round and per evaluation.

        The store does not keep them in memory, because a long run has too many.
        """
        return read_events(self.folder / METRICS_FILE)

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()


def ensure_layout(folder: Path, layout: Layout) -> None:
    """Create a run's folder with its layout, or check the existing layout.

    Raises:
        LedgerError: if the folder cannot be written, or holds another layout.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise LedgerError(f"{folder}: cannot be created: {error.strerror}") from error
    layout_file = folder / LAYOUT_FILE
    if not layout_file.exists():
        with disk_errors_explained(layout_file):
            write_durably(layout_file, (layout.to_json() + "\n").encode())
    elif read_layout(folder).hash != layout.hash:
        raise LedgerError(
            f"{layout_file}: belongs to a run with another layout; use another folder"
        )


def _check_same_run(folder: Path, header: LedgerHeader) -> None:
    """Check that a ledger, if there is one, has the run id of this run.

    Raises:
        LedgerError: if the run ids differ; the message gives the two possible reasons.
    """
    try:
        stored = read_header(folder / LEDGER_FOLDER).run_id
    except LedgerError:
        return  # no ledger yet, or a damaged ledger, which `Ledger` repairs or refuses
    if stored != header.run_id:
        raise LedgerError(
            f"{folder}: holds another run, {stored.hex()}, but these settings belong to run "
            f"{header.run_id.hex()}. Either the settings, the model or the number of clients have "
            "changed since that run began, or an earlier version of Samara began that run. This "
            "version cannot continue it; verify or export that run, or begin a new run in another "
            "folder"
        )


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Write the result of a run.

    Raises:
        LedgerError: if the file cannot be written; no result file is then left.
    """
    text = json.dumps(result, indent=2, sort_keys=True) + "\n"
    with disk_errors_explained(folder / RESULT_FILE):
        write_durably(folder / RESULT_FILE, text.encode())


def read_layout(folder: Path) -> Layout:
    """Read the layout of a run.

    Raises:
        SamaraError: if the file is missing or damaged.
    """
    file = folder / LAYOUT_FILE
    try:
        return Layout.from_json(file.read_text(encoding="utf-8").rstrip("\n"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SamaraError(f"{file}: cannot be read: {reason}; name the folder of a run") from error
    except SamaraError as error:
        raise SamaraError(f"{file}: {error}") from error


def cluster_folders(run: Path) -> list[Path]:
    """Return the folders of a run's clusters, in order; empty without clusters."""
    return sorted(run.glob("cluster-*"), key=lambda path: (len(path.name), path.name))


def ledger_of(run: Path) -> Path:
    """Return the folder of a run's ledger.

    Raises:
        SamaraError: if the run has one ledger per cluster.
    """
    if clusters := cluster_folders(run):
        raise SamaraError(
            f"{run}: each cluster has a ledger; name a cluster's folder, such as {clusters[0]}"
        )
    return run / LEDGER_FOLDER


def replay_run(folder: Path) -> Iterator[VerifiedRound]:
    """Replay a run's ledger and check every digest; see `verify_ledger`.

    Raises:
        SamaraError: at the first damage; the message names file and round.
    """
    return verify_ledger(ledger_of(folder), read_layout(folder))
