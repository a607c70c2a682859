"""The resident trainer: a client's model and data, loaded once, and its sessions on disk.

The client's folder holds ``runs/<run id>`` for every run that the client took part in, with the
session, the personal ledger, and the run's answers, settings, layout and execution. ``blobs`` holds
files that servers sent because runs need them. ``scenarios`` holds the scenarios signed by the
operator. Further files hold the counts of sent scalars, the counts of passes through the model, and
the log of answers. A crash leaves either the old or the new content of each file.
"""

import json
import logging
from pathlib import Path
from typing import Any

from samara.client.limits.answer_limits import warn_of_few_examples
from samara.client.limits.device_settings import owners_limits, with_device_settings
from samara.client.personal.personalizations import has_unfinished
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.client.protocol.blob_receiver import receive_part
from samara.client.protocol.client import (
    Client,
    Participation,
    Pausing,
    hear_refusal,
    unpaused,
)
from samara.client.protocol.generations import Generations
from samara.client.protocol.joined_runs import JoinedRun, JoinedRuns, run_folders
from samara.client.protocol.masking_client import MaskingClient, MaskingMemory, Signer
from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.client.protocol.session_store import SessionFolder
from samara.client.protocol.signed_runs import SignedRuns, describe_other_settings, match_scenario
from samara.client.training.client_data import ClientData
from samara.client.training.growing_data import GrowingData
from samara.client.training.model_runtime import ModelRuntime, load_run
from samara.shared.errors import (
    CodeError,
    ConfigError,
    DataError,
    ModelError,
    SamaraError,
    ScenarioError,
    find_disk_error,
)
from samara.shared.extensions import check_extensions
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.settings.blobs import file_settings, published_blobs, with_local_blobs
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes, run_id_of
from samara.shared.settings.setting import flattened, unknown_keys
from samara.shared.storage.blob_store import BlobStore
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.terms.signed_scenario import SignedScenario

log = logging.getLogger("samara.client")

BLOBS_FOLDER = "blobs"
"""Name of the folder for files from servers, in a client's folder."""
MAX_BLOBS_BYTES = 2**30
"""Maximum total size of files from servers, in bytes. The least recently used files are deleted."""


class ResidentTrainer:
    """A client whose model and data stay loaded for consecutive runs; only one thread uses it.

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the device. Where the device decides, they override the server's
            settings.
        folder: folder of the client's sessions and personal ledgers; created if missing.
        growing: source of the examples if their number may grow, else None. It is read between
            messages.
        signer: private key of the device; None without secure aggregation.

    Attributes:
        client: client index.
        config: the device's settings.
        folder: folder of the client.
        data: examples of the client.
        runtime: model runtime under the settings of the latest run.
        model_loads: number of times that a base model was loaded.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        data: ClientData,
        config: RunConfig,
        folder: Path,
        growing: GrowingData | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.runtime, self.data, self.client, self.model_loads = runtime, data, data.client, 1
        self.config, self.folder = config, folder
        self._sessions, self._records = SessionFolder(folder), Records.in_folder(folder)
        self._runs = JoinedRuns(folder)
        self._growing, self._generations = growing, Generations(folder)
        self._signer, self._masking = signer, MaskingMemory()
        self._scenario_folder = ScenarioFolder(folder)
        self._scenarios = self._scenario_folder.read_all()
        self._blobs = BlobStore(folder / BLOBS_FOLDER, MAX_BLOBS_BYTES)
        self._current = self._other = (b"", runtime)
        self._settings: bytes | None = None  # None for the device's own settings
        self._has_opened_run = False  # whether the latest run was opened before any message
        # A value is None after a failure, so that the run is not tried again.
        self._earlier: dict[bytes, tuple[ModelRuntime, Client] | None] = {}
        self._client = self.client_under(config)

    @classmethod
    def load(
        cls, config: RunConfig, client: int, folder: Path, signer: Signer | None = None
    ) -> "ResidentTrainer":
        """Load the model and the data of a client.

        Args:
            config: the device's settings.
            client: client index.
            folder: folder of the client.
            signer: private key of the device; without it, the client takes part in no secure
                aggregation.

        Raises:
            SamaraError: if the model, the task, the data or the folder cannot be used.
        """
        task = load_task(config.task)
        if isinstance(task, GenerationTask):  # until a run decides which layers it trains
            inner = config.adapter.model_copy(update={"layers": "top:1"})
            config = config.model_copy(update={"adapter": inner})
        growing = GrowingData(task, config.data, folder)
        examples = sum(example.split == "train" for example in growing.examples)
        if not examples:
            raise DataError(
                f"{config.data.path} has no training example, so this client has nothing to "
                "contribute; add examples with samara client learn"
            )
        warn_of_few_examples(examples, config.data.least_batch)
        runtime, source = load_run(config, lambda client_count: growing.examples)
        return cls(runtime, source.undivided(client), config, folder, growing, signer)

    def refresh_data(self) -> bool:
        """Read added and deleted examples, and return whether the examples have changed.

        Raises:
            TrainerError: if the learned examples of this client cannot be read.
        """
        if self._growing is None or not self._growing.refresh():
            return False
        before = len(self.data.examples)
        self._take_examples(self._growing)
        log.info("the data have changed: %d examples, %d before", len(self.data.examples), before)
        return True

    def _divide_for(self, runtime: ModelRuntime) -> None:
        """Divide the examples into splits as a runtime's run requires.

        Raises:
            DataError: if the examples cannot be read again.
        """
        settings = runtime.config.data
        if self._growing is not None and self._growing.divide_as(settings):
            self._take_examples(self._growing, afresh=True)
            log.info("the run divides the examples by data.split = %s", settings.split)

    def _take_examples(self, growing: GrowingData, afresh: bool = False) -> None:
        self.data.replace_examples(self.runtime.tokenize.windows(growing.examples), afresh)
        self.runtime.keep_only(self.data.parts())

    def answer(self, task: Task, pausing: Pausing = unpaused) -> bytes:
        """Return the reply to a task, as a frame.

        Args:
            task: task whose settings are the run config, a JSON object with dotted keys.
            pausing: function that returns the context in which the reply is computed.
        """
        try:
            if task.kind == TaskKind.REFUSED:
                return hear_refusal(task.instruction)
            if task.kind == TaskKind.BLOB:
                return self._receive_blob(task.instruction, task.settings)
            client = self.client_for(task.settings)
        except SamaraError as error:
            return self._client.refuse(task, error)
        except OSError as error:
            if disk_error := find_disk_error(error):
                return self._client.refuse(task, disk_error)
            raise
        return client.answer(task, pausing)

    def client_for(self, settings: bytes) -> Client:
        """Return the client under the settings of a run, without loading the model again.

        Args:
            settings: run config from the server, a JSON object with dotted keys.

        Raises:
            ConfigError: if the settings are not valid.
            MissingBlobError: if the settings name a file that has not been received.
            ScenarioError: if there are signed scenarios, but none has these settings.
            TrainerError: if the client's folder cannot be read or written.
            DataError: if the examples cannot be divided as the run requires.
        """
        self.refresh_data()
        if settings != self._settings:
            server_config = _read_server_config(settings)
            scenario = self._find_scenario(server_config)
            self._client = self.client_under(server_config, scenario)
            check_extensions(self.runtime.config.flat(), on_client=True)
            self._runs.write(server_config, self.runtime.layout, self.runtime.model_id)
            self._settings = settings
        self._divide_for(self.runtime)
        return self._client

    def _receive_blob(self, part: bytes, settings: bytes) -> bytes:
        """Store a part of a file that the settings of a run name, and return the receipt.

        Args:
            part: blob part, a frame.
            settings: run config from the server, a JSON object with dotted keys.

        Raises:
            ConfigError: if the settings are not valid.
            FrameError: if the frame is not a part of a file that the settings name.
            BlobError: if the part cannot be stored.
            ScenarioError: if there are signed scenarios, but none has these settings.
        """
        server_config = _read_server_config(settings)
        self._find_scenario(server_config)
        return receive_part(part, published_blobs(server_config).values(), self.client, self._blobs)

    def client_under(
        self, server_config: RunConfig, scenario: SignedScenario | None = None
    ) -> Client:
        """Return the client under a server's settings and the settings that the device decides.

        Args:
            server_config: settings of the run on the server.
            scenario: signed scenario with these settings; None if the server decides.
        """
        self.runtime = runtime = self.runtime.under(self._local_config(server_config))
        run_id = run_id_of(server_config, runtime.layout, runtime.model_id)
        self._current = run_id, runtime
        return self._client_with(runtime, run_id, server_config, scenario)

    def _client_with(
        self,
        runtime: ModelRuntime,
        run_id: bytes,
        server_config: RunConfig,
        scenario: SignedScenario | None = None,
    ) -> Client:
        config = self._local_config(server_config)
        part = Participation(
            config.terms,
            run_id,
            self._sessions.folder_of(run_id),
            config.ledger.snapshot_every,
            is_live=True,
            masking=self._masking_client(server_config),
        )
        learner = RuntimeLearner(runtime, self.data, self._generations.of_examples)
        signed = self._signed_runs(scenario, runtime)
        limits, privacy = owners_limits(config.data), config.terms.privacy
        guard = AnswerGuard(limits, learner, self._records, privacy, signed)
        return Client(learner, self._sessions, guard, part)

    def _masking_client(self, server_config: RunConfig) -> MaskingClient | None:
        if self._signer is None or not server_config.privacy.secure_aggregation:
            return None
        minimum, bucket = server_config.cohort.minimum, server_config.privacy.bucket
        return MaskingClient(self.client, self._signer, self._masking, minimum, bucket)

    def runtime_of(self, run: JoinedRun) -> ModelRuntime:
        """Return the loaded model under a run's settings, for the thread that answers questions.

        Args:
            run: a run in which the client takes part.

        Raises:
            SamaraError: if the run has another model, or a file that the run needs is missing.
        """
        for run_id, runtime in (self._current, self._other):
            if run_id == run.run_id:
                return runtime
        other = self.runtime.under(self._local_config(run.config))
        if run.model_id != other.model_id:
            raise ModelError(
                f"run {run.run_id.hex()} was trained with a model other than the one "
                f"in {self.runtime.base.folder}; restore the model's files, or name another run"
            )
        self._other = run.run_id, other
        return other

    def _local_config(self, server_config: RunConfig) -> RunConfig:
        """Return a server's settings with the device's values and with paths of local files."""
        config = with_device_settings(server_config, self.config)
        return with_local_blobs(config.model_copy(update={"out": str(self.folder)}), self._blobs)

    def take_private_rounds(self) -> bytes:
        """Take the due private rounds from the next start state; no message is needed.

        Earlier runs come first, because their private rounds come to an end, whereas the latest run
        may always have more. Nothing is sent. An interruption loses at most the unfinished round.

        Returns:
            The id of the run whose private rounds were taken, 8 bytes; empty if none were due.

        Raises:
            TrainingError, ReplayError, LedgerError: as in `Personalizer.take_next`, for the latest
                run. Failures of earlier runs are only logged.
            TrainerError: if the latest run or the counts of passes cannot be read or written.
            DataError: if the learned examples of this client cannot be read.
        """
        self.refresh_data()
        if not self._has_opened_run and self._settings is None:
            self._has_opened_run = True
            if self._sessions.has_sessions:
                run = self._runs.find()
                if run.model_id == self.runtime.model_id:
                    self._client = self.client_under(run.config)
        if run_id := self._take_earlier_private_rounds():
            return run_id
        self._divide_for(self.runtime)
        self.runtime.use_threads()
        return self._current[0] if self._client.take_private_rounds() else b""

    def _take_earlier_private_rounds(self) -> bytes:
        """Take the due private rounds from one start state of an earlier run.

        If a run's private rounds fail, they are not tried again until this trainer is restarted.

        Returns:
            The id of the run, 8 bytes; empty if no rounds were taken.
        """
        waiting = self._find_waiting_runs()
        self._earlier = {id_: client for id_, client in self._earlier.items() if id_ in waiting}
        for run_id in waiting:
            try:
                if run_id not in self._earlier:
                    run = self._runs.read(run_id)
                    runtime = self.runtime_of(run)
                    client = self._client_with(runtime, run_id, run.config)
                    self._earlier[run_id] = runtime, client
                if (earlier := self._earlier[run_id]) is None:
                    continue
                runtime, client = earlier
                self._divide_for(runtime)
                runtime.use_threads()
                if client.take_private_rounds():
                    return run_id
            except SamaraError as error:
                self._earlier[run_id] = None
                log.warning(
                    "the private rounds of run %s wait until this client is started again: %s",
                    run_id.hex(),
                    error,
                )
            finally:
                self.runtime.use_threads()
        return b""

    def _find_waiting_runs(self) -> list[bytes]:
        """Return, in order, the ids of earlier runs with pending private rounds."""
        ids = [
            bytes.fromhex(folder.name)
            for folder in reversed(run_folders(self.folder))
            if any(map(has_unfinished, folder.glob("clients/*")))
        ]
        return [run_id for run_id in ids if run_id != self._current[0]]

    def _find_scenario(self, server_config: RunConfig) -> SignedScenario | None:
        """Return the signed scenario with a server's settings; None if there are no scenarios.

        Raises:
            ScenarioError: if there are scenarios, but none has these settings.
        """
        if self._scenarios is None:
            return None
        identity, files = identity_bytes(server_config), file_settings(server_config)
        if scenario := match_scenario(self._scenarios, identity, files):
            return scenario
        asked = describe_other_settings(self._scenarios, server_config.identity() | files)
        self._scenario_folder.record_refusal(asked)
        raise ScenarioError(
            f"the server asks for {asked}. No signed scenario allows this; ask the operator"
        )

    def _signed_runs(self, scenario: SignedScenario | None, runtime: ModelRuntime) -> SignedRuns:
        record = self._scenario_folder.record_refusal
        layout_hash = runtime.layout.hash
        signed, answered = [scenario] if scenario else None, self._records.answered
        return SignedRuns(signed, layout_hash, runtime.model_id, answered, record)


def _read_server_config(settings: bytes) -> RunConfig:
    """Parse a run config from a server, in which files may be named only by hash.

    Raises:
        CodeError: if the config has a setting that this version does not know.
        ConfigError: if the text is not a valid run config.
    """
    values = _read_object(settings)
    if unknown := unknown_keys(RunConfig, flattened(values)):
        named = ", ".join(key[:60] for key in unknown[:3])
        raise CodeError(
            f"run config: this version of Samara does not know {named}; install the server's "
            "version"
        )
    try:
        config = RunConfig.of(values, "run config")
    except ConfigError as error:
        later = "if the server has a later version of Samara, install that version"
        raise ConfigError(f"{error}\n  {later}") from error
    published_blobs(config)
    return config


def _read_object(settings: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ConfigError: if the text is not a JSON object.
    """
    try:
        value = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"run config: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError("run config: is not a JSON object")
    return value
