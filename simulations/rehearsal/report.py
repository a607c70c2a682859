"""The report of a rehearsal, with predictions and results for each client."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from samara.client.protocol.session_store import decode_session
from samara.server.live.status import read_status
from samara.server.store import ledger_of, read_layout, replay_run
from samara.shared.protocol.replay import digest
from samara.shared.results.result import RESULT_FILE
from samara.shared.storage.files import write_durably
from samara.simulations.rehearsal.faults import FaultReport
from samara.simulations.rehearsal.plan import PlannedClient
from samara.simulations.rehearsal.processes import RehearsedClient

REPORT_FILE = "rehearsal.json"


@dataclass(frozen=True)
class ClientReport:
    """A client's predicted and measured figures.

    Attributes:
        name: name of the client.
        device: name of the device profile.
        fits: whether the model was predicted to fit.
        limit_bytes: limit of the memory in bytes.
        predicted_memory: predicted peak memory in bytes.
        memory: measured peak memory of all processes of the client, in bytes.
        predicted_seconds: predicted seconds of the device for a round's steps.
        seconds: median duration of the answers to train messages, divided by the dilation and
            therefore in device seconds; None without answers.
        answers: number of answers to train messages.
        frames_up: mean bytes of frames sent per round.
        frames_down: mean bytes of frames received per round.
        up: all bytes sent over the link; None if links are not shaped.
        down: all bytes received over the link; None if links are not shaped.
        round: last round in the client's state; 0 before the first round.
        digest: digest of the client's state in hex; empty without a state.
        agrees: whether the ledger has the digest `digest` after the round `round`.
        died: reason for an early end; empty if the client is alive.
    """

    name: str
    device: str
    fits: bool
    limit_bytes: int
    predicted_memory: int
    memory: int
    predicted_seconds: float
    seconds: float | None
    answers: int
    frames_up: int
    frames_down: int
    up: int | None
    down: int | None
    round: int
    digest: str
    agrees: bool
    died: str


@dataclass(frozen=True)
class RehearsalReport:
    """The report of a rehearsal.

    Attributes:
        dilation: seconds on this machine per second of the devices.
        rounds: number of rounds in the ledger.
        finished: whether the run was finished.
        clients: reports of the clients.
        faults: outcomes of the faults.
    """

    dilation: float
    rounds: int
    finished: bool
    clients: tuple[ClientReport, ...]
    faults: tuple[FaultReport, ...]

    @property
    def is_good(self) -> bool:
        """Return whether the rehearsal succeeded.

        The run must have finished, all digests must agree, and all clients must have survived their
        faults. No client that was predicted to fit may have died.
        """
        expected = [client for client in self.clients if client.fits]
        agree = all(client.agrees for client in self.clients if client.round)
        survived = all(fault.is_survived for fault in self.faults)
        died = any(client.died for client in expected)
        return self.finished and agree and survived and not died


def relative_error(predicted: float, happened: float | None) -> float | None:
    """Return (measured − predicted) / predicted; None if one of the numbers is missing."""
    return None if happened is None or not predicted else (happened - predicted) / predicted


def make_report(
    clients: Sequence[RehearsedClient],
    run: Path,
    home: Callable[[PlannedClient], Path],
    dilation: float,
    faults: Sequence[FaultReport],
) -> RehearsalReport:
    """Return the report of a rehearsal whose processes have ended.

    Args:
        clients: the clients, whose limits still exist.
        run: folder of the run.
        home: function that returns the folder of a client.
        dilation: seconds on this machine per second of the devices.
        faults: outcomes of the faults.

    Raises:
        SamaraError: if a file of the run is damaged.
    """
    digests = _digests(run)
    status = {one.name: one for one in read_status(run).clients.values()}
    reports = []
    for client in clients:
        plan = client.plan
        limits = client.limits
        answers = client.trained_seconds()
        reached, state = _position(home(plan))
        up, down = limits.link.traffic() if limits.link else (None, None)
        counted = status.get(plan.name)
        rounds = max(1, counted.reports) if counted else 1
        reports.append(
            ClientReport(
                name=plan.name,
                device=plan.hold.device,
                fits=plan.fits,
                limit_bytes=plan.hold.limit_bytes,
                predicted_memory=plan.memory_bytes,
                memory=limits.memory.peak_bytes(),
                predicted_seconds=plan.seconds,
                seconds=median(answers) / dilation if answers else None,
                answers=len(answers),
                frames_up=round(counted.bytes_up / rounds) if counted else 0,
                frames_down=round(counted.bytes_down / rounds) if counted else 0,
                up=up,
                down=down,
                round=reached,
                digest=state,
                agrees=digests.get(reached) == state,
                died=client.died,
            )
        )
    finished = (run / RESULT_FILE).exists()
    return RehearsalReport(
        dilation, max(digests, default=0), finished, tuple(reports), tuple(faults)
    )


def write_report(report: RehearsalReport, folder: Path) -> Path:
    """Write a report as JSON, and return its path."""
    file = folder / REPORT_FILE
    write_durably(file, (json.dumps(asdict(report), indent=1) + "\n").encode())
    return file


def _digests(run: Path) -> dict[int, str]:
    """Return the digest after each round of a ledger, by replay; empty without a ledger."""
    if not ledger_of(run).is_dir():
        return {}
    layout = read_layout(run)
    return {one.round: digest(layout.hash, one.state).hex() for one in replay_run(run)}


def _position(home: Path) -> tuple[int, str]:
    """Return round and digest of a client's session; 0 and an empty text before the first round."""
    found = [decode_session(file.read_bytes()) for file in home.glob("runs/*/session")]
    last = max(found, key=lambda session: session.position.round, default=None)
    return (last.position.round, last.digest.hex()) if last else (0, "")
