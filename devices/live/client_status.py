"""The status of a client of this machine, read from its files and asked of its trainer."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from samara.client.personal.personalizations import describe_personalizations
from samara.client.protocol.answer_log import ANSWERS_FILE, read_answers
from samara.client.protocol.joined_runs import JoinedRuns, latest_data_settings
from samara.client.protocol.logged_answers import LoggedAnswer
from samara.client.protocol.model_in_use import describe_model_in_use
from samara.client.protocol.pass_counts import PassCounts
from samara.client.protocol.privacy_budget import ChargeLog, describe_charges
from samara.client.protocol.remote_trainer import RemoteTrainer
from samara.client.protocol.scalar_counts import ScalarCounts
from samara.client.protocol.scenario_folder import describe_scenarios
from samara.client.protocol.session_store import decode_session
from samara.client.protocol.work_costs import WorkCost, WorkCosts
from samara.client.training.growing_data import DataFacts, GrowingData
from samara.devices.live.kept_checks import describe_checks
from samara.devices.live.pause_log import Pause, read_pauses
from samara.devices.live.server_contact import describe_contact
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import CatchUpError, SamaraError, TrainerError
from samara.shared.scalar_ratio import ScalarCount
from samara.shared.tasks.catalog import load_task

NOT_RUNNING = "not running"
_PATIENCE_SECONDS = 2.0


class RunProgress(NamedTuple):
    """A client's progress in a run.

    Attributes:
        run: run id in hex.
        round: last round in the client's state; None without a readable session.
        digest: digest of that state in hex; empty without one.
        rounds: number of federated rounds of the whole run; 0 if it is not known here.
        report: the latest report that was about to leave the device.
        refusal: the latest answer, if it was a refusal.
        passes: rows that went through the model.
        cost: seconds, pauses and energy of the work.
    """

    run: str
    round: int | None
    digest: str
    rounds: int
    report: LoggedAnswer | None
    refusal: LoggedAnswer | None
    passes: int
    cost: WorkCost


@dataclass(frozen=True)
class ClientStatus:
    """The status of a client.

    Attributes:
        name: name of the client.
        client: client index.
        trainer: state of its trainer, in words.
        wire: what brings the server's messages, and from where, in words.
        server: sentence on a server that is silent or has finished its run; otherwise empty.
        checks: lines on the last preflight: how many checks passed, and each that did not.
        model_in_use: sentence on the model in use; empty if there is no personal one.
        runs: progress in its runs, the latest last.
        personal: rows of `describe_personalizations`.
        pauses: pauses of the device, the latest last.
        examples: numbers of its examples; None if they cannot be read.
        problem: reason why they cannot; otherwise empty.
        sent: counts of sent scalars, by generation of examples and layout.
        scalar_limit: limit of the scalar ratio; 0 means none.
        privacy: sentence on what its reports with noise have cost; empty without any or a limit.
        scenarios: lines on what the operator has signed, and what was refused for it.
        shares_energy: whether the server is told what each report has cost this device.
    """

    name: str
    client: int
    trainer: str
    wire: str
    server: str
    checks: tuple[str, ...]
    model_in_use: str
    runs: tuple[RunProgress, ...]
    personal: tuple[tuple[str, ...], ...]
    pauses: tuple[Pause, ...]
    examples: DataFacts | None
    problem: str
    sent: dict[str, dict[str, ScalarCount]]
    scalar_limit: float
    privacy: str
    scenarios: tuple[str, ...]
    shares_energy: bool


class StatusReader:
    """Reads the status of a client, which need not be running.

    Read again, it reads long files only if they have changed.

    Args:
        folder: folder of the client.

    Raises:
        DeviceError: if the folder is no client's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._settings = folder, ClientSettings.read(folder)
        self._read_before: dict[Path, tuple[Any, Any]] = {}
        self._data: GrowingData | None = None

    def read(self) -> ClientStatus:
        """Read the status.

        Raises:
            SamaraError: if the counts of scalars or the log of answers cannot be read.
        """
        folder, settings = self._folder, self._settings
        examples, problem = self._read_examples()
        return ClientStatus(
            settings.name,
            settings.client_index,
            _describe_trainer(settings),
            _describe_wire(settings),
            describe_contact(folder),
            tuple(describe_checks(folder)),
            describe_model_in_use(folder),
            self._read_runs(),
            tuple(describe_personalizations(folder)),
            tuple(read_pauses(folder)),
            examples,
            problem,
            ScalarCounts(folder).read(),
            settings.config.data.scalar_limit,
            self._describe_privacy(),
            tuple(describe_scenarios(folder)),
            settings.share_energy,
        )

    def _describe_privacy(self) -> str:
        charges, limit = ChargeLog(self._folder).read(), self._settings.config.data.epsilon_limit
        return describe_charges(charges, limit) if charges or limit else ""

    def _read_runs(self) -> tuple[RunProgress, ...]:
        """Read the progress in every run that the files know of, in the order of its last use."""
        folder = self._folder
        answers = self._if_changed(folder / ANSWERS_FILE, lambda _: read_answers(folder).answers)
        passes, costs = PassCounts(folder).read(), WorkCosts(folder).read()
        sessions = {file.parent.name: file for file in folder.glob("runs/*/session")}
        last: dict[str, LoggedAnswer] = {}
        reports: dict[str, LoggedAnswer] = {}
        for answer in answers or ():
            last[answer.run] = answer
            if answer.asked == "train" and not answer.refused:
                reports[answer.run] = answer
        progress = []
        for run in sorted({*passes, *costs, *sessions, *last} - {""}):
            session = run in sessions and self._if_changed(sessions[run], _position_and_digest)
            round_number, digest = session or (None, "")
            latest = last.get(run)
            refusal = latest if latest and latest.refused else None
            progress.append(
                RunProgress(
                    run,
                    round_number,
                    digest,
                    self._rounds_of(run),
                    reports.get(run),
                    refusal,
                    passes.get(run, 0),
                    costs.get(run, WorkCost()),
                )
            )
        return tuple(sorted(progress, key=lambda one: last[one.run].time if one.run in last else 0))

    def _rounds_of(self, run: str) -> int:
        try:
            return JoinedRuns(self._folder).read(bytes.fromhex(run)).config.federated_rounds
        except (SamaraError, ValueError):
            return 0

    def _read_examples(self) -> tuple[DataFacts | None, str]:
        """Read the examples as the client reads them before its next round."""
        settings, config = self._settings, self._settings.config
        try:
            data = latest_data_settings(settings.folder, config)
            if self._data is None:
                task = load_task(config.task)
                self._data = GrowingData(task, data, settings.folder, may_delete=False)
            elif not self._data.divide_as(data):
                self._data.refresh()
            return self._data.facts, ""
        except SamaraError as error:
            return None, str(error)

    def _if_changed(self, file: Path, read: Callable[[Path], Any]) -> Any:
        """Return what a function reads of a file, unread if the file is as it was."""
        try:
            facts = file.stat()
        except OSError:
            return None
        version = facts.st_mtime_ns, facts.st_size, facts.st_ino
        if self._read_before.get(file, (None, None))[0] != version:
            self._read_before[file] = version, read(file)
        return self._read_before[file][1]


def _position_and_digest(session: Path) -> tuple[int, str] | None:
    """Read the round and the digest of a session's file; None if it is damaged or gone."""
    try:
        read = decode_session(session.read_bytes())
    except (OSError, CatchUpError):
        return None
    return read.position.round, read.digest.hex()


def _describe_trainer(settings: ClientSettings) -> str:
    if not _is_listened_on(settings.socket):
        return NOT_RUNNING
    try:
        with RemoteTrainer(str(settings.socket), _PATIENCE_SECONDS) as trainer:
            status = trainer.status()
    except TrainerError:
        return "its trainer does not answer"
    paused = f", paused: {status.paused}" if status.paused else ""
    return f"running, {status.answered} messages answered{paused}"


def _describe_wire(settings: ClientSettings) -> str:
    if settings.wire == "stream":
        return f"by the stream to a gateway: {', '.join(settings.gateways)}"
    return f"by Flower's SuperNode to {settings.superlink}"


def _is_listened_on(path: Path) -> bool:
    """Return whether a process listens on a Unix socket; after a crash its file is still there."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE_SECONDS)
        try:
            probe.connect(str(path))
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
    return True
