"""A phone as a client; each of its tasks carries the settings of the task's run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.client.protocol.client import INSTRUCTIONS, Client, Participation
from samara.client.protocol.masking_client import Signer
from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.client.protocol.session import decode_instruction
from samara.client.protocol.session_store import SessionFolder
from samara.client.protocol.signed_runs import SignedRuns
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.phone_masks import PhoneMasks
from samara.devices.phone.reference_client.run_settings import RunSettings
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.terms.run_terms import RunTerms

SNAPSHOT_EVERY = 1000
"""Number of records between snapshots of the personal ledger."""


class Phone:
    """Answers the gateway's tasks and takes private rounds between them.

    Args:
        learner: program and examples.
        home: folder of the phone's sessions, personal ledgers, counts, answers and signed
            scenarios; created if missing.
        limits: limits that the phone's owner set.
        owners: settings that the owner decides instead of the run, by dotted key.
        signer: the phone's key; without it, the phone takes part in no secure aggregation.

    Raises:
        ScenarioError: if the signed scenarios are damaged.
    """

    def __init__(
        self,
        learner: PhoneLearner,
        home: Path,
        limits: AnswerLimits | None = None,
        owners: Mapping[str, Any] | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._learner = learner
        self._limits = limits or AnswerLimits()
        self._records = Records.in_folder(home)
        self._folder = SessionFolder(home)
        scenarios = ScenarioFolder(home)
        hashes = (learner.layout.hash, learner.model_id)
        self._signed = SignedRuns(
            scenarios.read_all(), *hashes, self._records.answered, scenarios.record_refusal
        )
        self._settings = RunSettings(home, learner.layout.hash, learner.model_id, owners)
        self._masks = PhoneMasks(learner.client, signer)

    def answer(self, task: Task) -> bytes:
        """Return the reply to a task as a frame.

        Args:
            task: task with the run's settings as sorted JSON; the run id is a hash of this JSON. An
                instruction without settings must belong to a run whose settings are known.
        """
        try:
            if task.kind == TaskKind.HELLO:
                return self._hello(task.settings)
            client = self._client_for(task)
        except SamaraError as error:
            return self._client(None).refuse(task, error)
        return client.answer(task)

    def take_private_rounds(self) -> None:
        """Carry out the due private rounds of the latest run; their results stay on the phone.

        Raises:
            TrainingError: as in `Client.take_private_rounds`.
            ReplayError: as in `Client.take_private_rounds`.
            LedgerError: as in `Client.take_private_rounds`.
        """
        if latest := self._settings.latest():
            client = self._client(self._part(*latest))
            while client.take_private_rounds():
                pass

    def _hello(self, settings: bytes) -> bytes:
        """Return the hello with which this phone introduces itself; the hello's round is always 0.

        The phone refuses the server's first instruction if it has another round, and the refusal
        names the phone's round. With differential privacy, or without settings, the hello omits the
        number of examples.
        """
        is_private = not settings or bool(self._settings.read_terms(settings).privacy)
        is_private |= self._signed.has_privacy
        return self._learner.introduce(0, hides_examples=is_private).encode()

    def _client_for(self, task: Task) -> Client:
        """Return the client for a task's run.

        Raises:
            ConfigError: if an instruction's settings are unknown, or do not match its run.
            ScenarioError: if the settings lack a term of the run.
            FrameError: if the instruction is invalid.
            TrainerError: if the settings cannot be written.
        """
        if task.kind in INSTRUCTIONS:
            instruction = decode_instruction(task.instruction)
            settings = self._settings_of(instruction.run_id, task.settings)
            if not settings:
                return self._client(None)
            run_id, terms = self._settings.take(instruction, settings)
        elif task.settings and task.kind == TaskKind.MASK:
            settings = task.settings
            terms = self._settings.read_terms(task.settings)
            run_id = b""  # a masking frame contains no run id
        else:
            return self._client(None)
        return self._client(self._part(run_id, terms, self._masks.under(settings, terms.privacy)))

    def _settings_of(self, run_id: bytes, settings: bytes) -> bytes:
        """Return a run's settings: from a signed scenario, from the instruction, or from the disk.

        The run id is a hash of the settings. Nobody between server and phone can therefore remove a
        run's privacy terms by omitting or replacing settings.

        Returns:
            Sorted JSON; empty if no signed scenario leads to the run.

        Raises:
            ConfigError: if no settings are available.
        """
        if not self._signed.server_decides:
            return self._signed.settings_of(run_id)
        if found := settings or self._settings.find(run_id):
            return found
        raise ConfigError(
            f"an instruction of run {run_id.hex()} arrived without the run's settings, so this "
            f"phone "
            "does not know whether its reports must be private; update the gateway"
        )

    def _part(
        self, run_id: bytes, terms: RunTerms, masks: PhoneMasks | None = None
    ) -> Participation:
        folder = self._folder.folder_of(run_id)
        return Participation(terms, run_id, folder, SNAPSHOT_EVERY, is_live=True, masking=masks)

    def _client(self, part: Participation | None) -> Client:
        privacy = part.terms.privacy if part else None
        guard = AnswerGuard(self._limits, self._learner, self._records, privacy, self._signed)
        return Client(self._learner, self._folder, guard, part)
