"""The report of a rehearsal: what was predicted, and what happened, client by client."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from samara.client.protocol.session_store import decode_session
from samara.server.live.status import read_status
from samara.server.store import ledger_of, read_layout, replay_run
from samara.shared.files import write_durably
from samara.shared.replay import digest
from samara.shared.result import RESULT_FILE
from samara.simulations.rehearsal.faults import FaultReport
from samara.simulations.rehearsal.plan import PlannedClient
from samara.simulations.rehearsal.processes import RehearsedClient

REPORT_FILE = "rehearsal.json"


@dataclass(frozen=True)
class ClientReport:
    """The figures of a client: those that were predicted, and those that happened.

    Attributes:
        name: name of the client.
        device: name of its profile.
        fits: whether the model was predicted to fit.
        limit_bytes: limit of its memory.
        predicted_memory: predicted peak, bytes.
        memory: peak of all its processes, bytes.
        predicted_seconds: predicted seconds of the device for a round's steps.
        seconds: seconds of the device that an answer to a train message took, median; None
            without any.
        answers: number of these answers.
        frames_up, frames_down: bytes of the frames that a round carried, on average.
        up, down: bytes that crossed its link, everything included; None where links are not held.
        round: round that it stands at; 0 before the first.
        digest: digest of its state, hex; empty without one.
        agrees: whether the ledger has this digest after this round.
        died: why it is not there any more; empty if it is.
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
        dilation: seconds on this machine that stood for a second of the devices.
        rounds: rounds of the ledger.
        finished: whether the run was finished.
        clients: the clients' reports.
        faults: what became of the faults.
    """

    dilation: float
    rounds: int
    finished: bool
    clients: tuple[ClientReport, ...]
    faults: tuple[FaultReport, ...]

    @property
    def is_good(self) -> bool:
        """Return whether the run finished, all digests agree, and nobody died that was to fit.

        Faults must have been survived.
        """
        expected = [client for client in self.clients if client.fits]
        agree = all(client.agrees for client in self.clients if client.round)
        survived = all(fault.is_survived for fault in self.faults)
        died = any(client.died for client in expected)
        return self.finished and agree and survived and not died


def relative_error(predicted: float, happened: float | None) -> float | None:
    """Return (happened − predicted) / predicted, or None without both."""
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
        dilation: seconds on this machine that stood for a second of the devices.
        faults: what became of the faults.

    Raises:
        SamaraError: if a file of the run is damaged.
    """
    digests = _digests(run)
    status = {one.name: one for one in read_status(run).clients.values()}
    reports = []
    for client in clients:
        plan, limits = client.plan, client.limits
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
    """Write a report as JSON, and return its file."""
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
    """Return the round and the digest of a client's session; 0 and "" before the first."""
    found = [decode_session(file.read_bytes()) for file in home.glob("runs/*/session")]
    last = max(found, key=lambda session: session.position.round, default=None)
    return (last.position.round, last.digest.hex()) if last else (0, "")
