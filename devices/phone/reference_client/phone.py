"""The phone as a client of a run: replies to frames with a program and the phone's examples."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.client.personal.columns import evaluate_global_model, evaluate_personal_model
from samara.client.personal.methods import composition
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.private_fit import intercept_for_training, report_intercept
from samara.client.protocol.answer_guard import AnswerGuard
from samara.client.protocol.answer_limits import AnswerLimits
from samara.client.protocol.answer_log import AnswerLog
from samara.client.protocol.answered_runs import AnsweredRuns
from samara.client.protocol.client_handler import (
    ClientHandler,
    Instruction,
    catch_up_session,
    decode_instruction,
)
from samara.client.protocol.masking_client import Signer
from samara.client.protocol.privacy_budget import ChargeLog, PrivacyBudget
from samara.client.protocol.private_report import make_private, refuse_evaluation
from samara.client.protocol.scalar_counts import ScalarBudget, ScalarCounts
from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.client.protocol.signed_runs import SignedRuns
from samara.devices.phone.reference_client.phone_learner import PhoneLearner
from samara.devices.phone.reference_client.phone_masks import PhoneMasks
from samara.devices.phone.reference_client.phone_trainer import PhoneTrainer
from samara.devices.phone.reference_client.run_settings import RunSettings
from samara.shared.errors import ConfigError, FrameError, SamaraError
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.instructions import INTERCEPT_TRACK, EvaluateInstruction, TrainInstruction
from samara.shared.frames.refusal import Refusal, describe_servers_refusal
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.ledger.records import CatchUp
from samara.shared.privacy.terms import PrivacyTerms
from samara.shared.run_terms import RunTerms

log = logging.getLogger("samara.phone")

SNAPSHOT_EVERY = 1000
"""Records between snapshots of the personal ledger."""


class Phone(ClientHandler):
    """A phone's replies to the gateway, and its private rounds between them.

    Args:
        trainer: program and examples.
        client: client index, derived from the phone's key.
        home: folder of the phone's sessions, personal ledgers, counts, answers and signed
            scenarios; made if it does not exist.
        limits: limits that the phone's owner set.
        owners: settings of a run that the owner has decided otherwise, by dotted key.
        signer: the phone's own key; without it, it takes part in no secure aggregation.

    Raises:
        ScenarioError: if the signed scenarios are damaged.
    """

    def __init__(
        self,
        trainer: PhoneTrainer,
        client: int,
        home: Path,
        limits: AnswerLimits | None = None,
        owners: Mapping[str, Any] | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._folder, self._limits = SessionFolder(home), limits or AnswerLimits()
        size, limit = trainer.layout.size, self._limits.scalar_limit
        self._budget = ScalarBudget(ScalarCounts(home), trainer.generations_of, size, limit)
        self._answered, self._charges = AnsweredRuns(self._folder.folder_of), ChargeLog(home)
        self._trainer, self._learner = trainer, PhoneLearner(trainer, client)
        self._privacy: PrivacyTerms | None = None  # of the run whose message is answered
        signed_runs = _signed_runs(ScenarioFolder(home), trainer, self._answered)
        guard = self._guard_under(None)
        super().__init__(client, self._folder, guard, AnswerLog(home), size, signed_runs)
        self._settings = RunSettings(home, trainer.layout.hash, trainer.model_id, owners)
        self._masks = PhoneMasks(client, signer)

    def hello(self, settings: bytes = b"") -> bytes:
        """Return the hello with which this phone introduces itself; its round is always 0.

        The server learns the session's round from a refusal of its first instruction. With
        differential privacy, or without settings, it does not learn how many examples there are.

        Args:
            settings: as in `train`.
        """

        def introduce() -> bytes:
            is_private = not settings or bool(self._settings.read_terms(settings).privacy)
            is_private |= bool(self._signed_runs and self._signed_runs.has_privacy)
            return self._trainer.hello(self._client, 0, hides_examples=is_private).encode()

        return self._reply_or_refuse(b"", introduce)

    def mask(self, frame: bytes, settings: bytes = b"") -> bytes:
        """Return the answer to a masking frame; see `PhoneMasks.answer`.

        Args:
            frame: masking frame.
            settings: as in `train`.
        """

        def answer() -> bytes:
            privacy = self._settings.read_terms(settings).privacy if settings else None
            return self._masks.answer(frame, settings, privacy)

        return self._reply_or_refuse(b"", answer)

    def train(
        self, instruction: bytes, catch_up: CatchUp, settings: bytes = b"", shares: bytes = b""
    ) -> bytes:
        """Catch up, train, and report; a repeated instruction gets the stored report.

        Args:
            instruction: train instruction, a frame.
            catch_up: rounds that the phone may have missed.
            settings: settings that are part of the run id, sorted JSON; without them, those that
                are known of the run, and an instruction of any other is refused.
            shares: sealed shares for this phone, a frame; empty without secure aggregation.
        """
        return self._reply_or_refuse(
            instruction, lambda: self._train(instruction, catch_up, settings, shares)
        )

    def evaluate(
        self,
        instruction: bytes,
        catch_up: CatchUp,
        settings: bytes = b"",
        personal: bool = False,
    ) -> bytes:
        """Catch up, and evaluate the global model, or the personal model and its baselines.

        Args:
            instruction: evaluate instruction, a frame.
            catch_up: rounds that the phone may have missed.
            settings: as in `train`.
            personal: whether to take the private rounds and to compare personal models.
        """
        return self._reply_or_refuse(
            instruction,
            lambda: self._evaluate(instruction, catch_up, settings, personal),
            personal,
        )

    def receive_blob(self, part: bytes) -> bytes:
        """Refuse a part of a file: all that the adapter needs is in the phone's program."""
        return self.refuse(part, FrameError("a blob part was sent to a phone that lacks no blob"))

    def hear_refusal(self, refusal: bytes) -> bytes:
        """Log why the server refuses this phone, and return its refusal."""
        try:
            log.warning("%s", describe_servers_refusal(Refusal.decode(refusal).code))
        except FrameError as error:
            return self.refuse(refusal, error)
        return refusal

    def take_private_rounds(self) -> None:
        """Take the private rounds that are due in the latest run; nothing of them is sent.

        What interrupts it leaves a ledger of whole rounds, from which the next call goes on.

        Raises:
            TrainingError, ReplayError, LedgerError: those of `Personalizer.take`.
        """
        latest = self._settings.latest()
        session = latest and self._sessions.read_session(latest[0])
        if latest and session:
            personalizer = self._personalizer(*latest, session)
            personalizer.note(session.position.round, session.state, session.digest)
            personalizer.take()

    @property
    def _is_private(self) -> bool:
        return self._privacy is not None

    def _train(self, frame: bytes, catch_up: CatchUp, settings: bytes, shares: bytes) -> bytes:
        run_id = decode_instruction(frame).run_id
        settings = self._settings_of(run_id, settings)
        terms = self._enter(run_id, settings)
        if shares:
            self._masks.answer(shares, settings, self._privacy)
        masking = self._masks.client_under(settings, self._privacy)

        def start_session(instruction: TrainInstruction) -> Session:
            return self._session_at(instruction, catch_up, terms)

        def train(
            instruction: TrainInstruction, session: Session
        ) -> Report | AnyVectorReport | MaskedReport:
            if instruction.track == INTERCEPT_TRACK:
                report = report_intercept(self._learner, terms, instruction, session.state)
            else:
                private = intercept_for_training(self._learner, terms, session.state)
                state = composition(terms, self._trainer.layout).model(session.state, private)
                report = self._trainer.train(instruction, state, self._client)
            if self._privacy is None:
                return report
            hidden = make_private(report, instruction, self._privacy)
            return masking.mask(hidden) if masking else hidden

        return self._report_once(frame, start_session, train)

    def _evaluate(self, frame: bytes, catch_up: CatchUp, settings: bytes, personal: bool) -> bytes:
        run_id, learner = decode_instruction(frame).run_id, self._learner
        terms = self._enter(run_id, self._settings_of(run_id, settings))

        def evaluate(instruction: EvaluateInstruction) -> tuple[EvaluationColumn, ...]:
            if self._privacy:
                refuse_evaluation(instruction)
            session, split = self._session_at(instruction, catch_up, terms), instruction.split
            state, common = session.state, session.common_state
            if not personal:
                return evaluate_global_model(learner, terms, state, split, common)
            private = self._personalizer(instruction.run_id, terms, session).private_state(
                session.position.round, state, session.digest
            )
            return evaluate_personal_model(learner, terms, state, private, split, common)

        return self._evaluate_once(frame, personal, evaluate)

    def _settings_of(self, run_id: bytes, settings: bytes) -> bytes:
        """Return the settings that came with an instruction, or that are known of its run.

        The run id is a hash of them, so that nobody between server and phone takes a run's privacy
        away by leaving them out or by sending others.

        Raises:
            ConfigError: if there are none.
        """
        signed = self._signed_runs.settings_of(run_id) if self._signed_runs else b""
        if found := settings or signed or self._settings.find(run_id):
            return found
        raise ConfigError(
            f"an instruction of run {run_id.hex()} came without the run's settings, so that this "
            "phone does not know whether its reports are to be private; update the gateway"
        )

    def _enter(self, run_id: bytes, settings: bytes) -> RunTerms:
        """Answer under the privacy of a run from now on; return its terms.

        Raises:
            ConfigError, ScenarioError, TrainerError: those of `RunSettings.take`.
        """
        self._privacy = None
        terms = self._settings.take(run_id, settings)
        self._privacy = terms.privacy
        self._guard = self._guard_under(self._privacy)
        return terms

    def _guard_under(self, privacy: PrivacyTerms | None) -> AnswerGuard:
        charged = PrivacyBudget(self._charges, privacy, self._limits.epsilon_limit)
        smallest = self._trainer.smallest_batch
        return AnswerGuard(self._limits, smallest, self._budget, self._answered, charged)

    def _session_at(self, instruction: Instruction, catch_up: CatchUp, terms: RunTerms) -> Session:
        """Return the session at an instruction's start, after keeping it on disk.

        A state from which private rounds are due is noted; they are taken between messages.
        """
        session = catch_up_session(self._sessions, self._trainer, instruction, catch_up)
        self._sessions.write_session(instruction.run_id, session)
        try:
            self._personalizer(instruction.run_id, terms, session).note(
                session.position.round, session.state, session.digest
            )
        except SamaraError as error:  # what the federation asks for is carried out all the same
            log.warning("the private rounds are left out: %s", error)
        return session

    def _personalizer(self, run_id: bytes, terms: RunTerms, session: Session) -> Personalizer:
        run = self._folder.folder_of(run_id)
        folder = run / "clients" / str(self._client)
        return Personalizer(
            *(self._learner, terms, run_id, folder, SNAPSHOT_EVERY, run.parent),
            common=session.common_state,
        )


def _signed_runs(
    folder: ScenarioFolder, trainer: PhoneTrainer, answered: AnsweredRuns
) -> SignedRuns | None:
    """Return the runs of a phone's signed scenarios; None if it has none, and obeys the server."""
    scenarios = folder.read_all()
    if scenarios is None:
        return None
    hashes = trainer.layout.hash, trainer.model_id
    return SignedRuns(scenarios, *hashes, answered, folder.record_refusal)
