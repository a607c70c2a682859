"""The status of a client on this machine, from its files and its trainer."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from samara.client.limits.answer_log import ANSWERS_FILE, read_answers
from samara.client.limits.logged_answers import LoggedAnswer
from samara.client.limits.pass_counts import PassCounts
from samara.client.limits.privacy_budget import ChargeLog, describe_charges
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.limits.work_costs import WorkCost, WorkCosts
from samara.client.personal.few_examples import QualityByExamples
from samara.client.personal.personalizations import describe_personalizations
from samara.client.protocol.joined_runs import JoinedRuns, latest_data_settings
from samara.client.protocol.scenario_folder import describe_scenarios
from samara.client.protocol.session_store import decode_session
from samara.client.questions.model_in_use import describe_model_in_use, quality_of_model_in_use
from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.training.growing_data import DataFacts, GrowingData
from samara.devices.live.checks.kept_checks import describe_checks
from samara.devices.live.pause_log import Pause, read_pauses
from samara.devices.live.server_contact import describe_contact
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import CatchUpError, SamaraError, TrainerError
from samara.shared.privacy.scalar_ratio import ScalarCount
from samara.shared.tasks.catalog import load_task

NOT_RUNNING = "not running"
_PATIENCE_SECONDS = 2.0


class RunProgress(NamedTuple):
    """A client's progress in a run.

    Attributes:
        run: run id in hex.
        round: last round in the client's state; None without a readable session.
        digest: digest of the client's state in hex; empty without a readable session.
        rounds: number of federated rounds of the whole run; 0 if unknown.
        report: the latest report that the trainer has handed over for sending.
        refusal: the latest answer if it was a refusal; otherwise None.
        passes: number of rows that went through the model.
        cost: seconds of work, seconds of pauses, and energy in the run.
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
        trainer: description of the trainer's state.
        wire: description of the connection: SuperNode and server, or stream and gateways.
        server: sentence about a server that is silent or has finished its run; otherwise empty.
        checks: lines about the last preflight: the number of passed checks, and each warning or
            failure.
        model_in_use: sentence about the model in use; empty if there is no personal model.
        runs: progress in each run, the latest last.
        personal: rows of `describe_personalizations`.
        by_examples: quality of the model in use by number of training examples.
        pauses: pauses of the device, the latest last.
        examples: counts of the client's examples; None if they cannot be read.
        problem: reason why the examples cannot be read; otherwise empty.
        sent: counts of sent scalars, by generation of examples and by layout.
        scalar_limit: limit of the scalar ratio; 0 means none.
        privacy: sentence about the privacy cost of noised reports; empty if there are none and no
            limit is set.
        scenarios: lines about signed scenarios, and instructions refused because of them.
        shares_energy: whether the client sends the server the round cost of its reports.
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
    by_examples: tuple[QualityByExamples, ...]
    pauses: tuple[Pause, ...]
    examples: DataFacts | None
    problem: str
    sent: dict[str, dict[str, ScalarCount]]
    scalar_limit: float
    privacy: str
    scenarios: tuple[str, ...]
    shares_energy: bool


class StatusReader:
    """Reads the status of a client, whether or not it is running.

    Long files are read again only after they have changed.

    Args:
        folder: folder of the client.

    Raises:
        DeviceError: if the folder is not a client's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = ClientSettings.read(folder)
        self._read_before: dict[Path, tuple[Any, Any]] = {}
        self._data: GrowingData | None = None

    def read(self) -> ClientStatus:
        """Read the status.

        Raises:
            SamaraError: if the counts of scalars or the log of answers cannot be read.
        """
        folder = self._folder
        settings = self._settings
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
            quality_of_model_in_use(folder),
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
        charges = ChargeLog(self._folder).read()
        limit = self._settings.config.data.epsilon_limit
        return describe_charges(charges, limit) if charges or limit else ""

    def _read_runs(self) -> tuple[RunProgress, ...]:
        """Read the progress in every known run, in order of last use."""
        folder = self._folder
        answers = self._if_changed(folder / ANSWERS_FILE, lambda _: read_answers(folder).answers)
        passes = PassCounts(folder).read()
        costs = WorkCosts(folder).read()
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
        """Read the examples in the same way as the client does before its next round."""
        settings = self._settings
        config = self._settings.config
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
        """Read a file if it has changed; otherwise return the cached result."""
        try:
            facts = file.stat()
        except OSError:
            return None
        version = facts.st_mtime_ns, facts.st_size, facts.st_ino
        if self._read_before.get(file, (None, None))[0] != version:
            self._read_before[file] = version, read(file)
        return self._read_before[file][1]


def _position_and_digest(session: Path) -> tuple[int, str] | None:
    """Read the round and the digest from a session file; None if it is damaged or gone."""
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
    """Return whether a process listens on a Unix socket; after a crash, only its file remains."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PATIENCE_SECONDS)
        try:
            probe.connect(str(path))
        except (TimeoutError, BlockingIOError):
            return True
        except OSError:
            return False
    return True
