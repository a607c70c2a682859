"""The protocol client: replies to instructions with a model runtime and a client's data."""

import json
import logging
import platform
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from samara.client.personal.columns import evaluate_global_model, evaluate_personal_model
from samara.client.personal.methods import composition
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.private_fit import intercept_for_training, report_intercept
from samara.client.personal.runtime_learner import RuntimeLearner, runtime_personalizer
from samara.client.protocol.answer_guard import AnswerGuard
from samara.client.protocol.answer_limits import AnswerLimits
from samara.client.protocol.answer_log import AnswerLog
from samara.client.protocol.answered_runs import AnsweredRuns
from samara.client.protocol.client_handler import (
    ClientHandler,
    Instruction,
    SessionStore,
    catch_up_session,
    decode_instruction,
)
from samara.client.protocol.generations import Generations
from samara.client.protocol.masking_client import MaskingClient
from samara.client.protocol.pass_counts import PassCounts
from samara.client.protocol.privacy_budget import ChargeLog, PrivacyBudget
from samara.client.protocol.private_report import make_private, refuse_evaluation
from samara.client.protocol.scalar_counts import ScalarBudget, ScalarCounts
from samara.client.protocol.session import Session
from samara.client.protocol.shared_catch_up import Reach
from samara.client.protocol.signed_runs import SignedRuns
from samara.client.training.client_data import ClientData
from samara.client.training.interrupted_steps import InterruptedSteps
from samara.client.training.local_step_plan import smallest_batch
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.config import RunConfig
from samara.shared.data_settings import DataSettings
from samara.shared.errors import DataError, FrameError, MaskingError, SamaraError
from samara.shared.extensions import check_extensions
from samara.shared.frames.evaluation import EvaluationColumn
from samara.shared.frames.hello import SPLIT_BYTES, SPLIT_EXAMPLES, SPLIT_TOKENS, Hello
from samara.shared.frames.instructions import (
    INTERCEPT_TRACK,
    EvaluateInstruction,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import AnyVectorReport, MaskedReport
from samara.shared.ledger.records import CatchUp
from samara.shared.runs import run_folder, run_id_of
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.rows import data_fingerprint

log = logging.getLogger("samara.client")


class ProtocolClient(ClientHandler):
    """A client of a run that computes with a model runtime.

    Args:
        runtime: model runtime.
        data: examples of the client, with its index.
        config: settings of the run on this client, with the device's own settings.
        server_config: settings of the run on the server, which the run id is made of.
        sessions: store of the client's sessions.
        counts: counts of sent scalars; None counts nothing.
        pass_counts: counts of rows that went through the model, on disk; None writes none.
        signed_runs: runs that the operator has signed; None obeys the server.
        answered: what the client has answered in each run, on disk; None keeps nothing.
        answer_log: log of the answers, on disk; None logs nothing.
        generations: which examples came together, on disk; None counts all as one generation.
        charges: what noised reports have cost, on disk; None charges nothing.
        masking: its part in secure aggregation; None takes part in no run with it.
        has_idle_time: whether private rounds are taken by `take_private_rounds` between messages,
            and not as soon as they are due.
        reach: brings its sessions to the server's round.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        data: ClientData,
        config: RunConfig,
        server_config: RunConfig,
        sessions: SessionStore,
        counts: ScalarCounts | None = None,
        pass_counts: PassCounts | None = None,
        signed_runs: SignedRuns | None = None,
        answered: AnsweredRuns | None = None,
        answer_log: AnswerLog | None = None,
        generations: Generations | None = None,
        charges: ChargeLog | None = None,
        masking: MaskingClient | None = None,
        has_idle_time: bool = False,
        reach: Reach = Session.catch_up,
    ) -> None:

        def generations_of(split: Split) -> tuple[str, ...]:
            if not (hash_ := data.hash_of(split)):
                return ()
            if generations is None:
                return (hash_,)
            return generations.of_examples(split, data.in_split(split), hash_)

        own, budget, size = config.data, None, runtime.layout.size
        limits = AnswerLimits(
            own.scalar_limit, own.least_batch, own.scalars_per_example, own.epsilon_limit
        )
        if counts:
            budget = ScalarBudget(counts, generations_of, size, limits.scalar_limit)

        def smallest(instruction: TrainInstruction) -> int:
            return smallest_batch(instruction, data.labels(Split.TRAIN), runtime.label_count)

        terms = config.terms.privacy
        privacy = PrivacyBudget(charges, terms, limits.epsilon_limit) if charges else None
        guard = AnswerGuard(limits, smallest, budget, answered, privacy)
        super().__init__(data.client, sessions, guard, answer_log, size, signed_runs)
        self._runtime, self._data = runtime, data
        self._config, self._server_config = config, server_config
        self._pass_counts, self._has_idle_time = pass_counts, has_idle_time
        self._reach = reach
        self._masking = masking if config.privacy.secure_aggregation else None
        self._interrupted: InterruptedSteps[Any] = InterruptedSteps()
        self._learner = RuntimeLearner(runtime, data)

    @property
    def deadline(self) -> float:
        """The seconds that the server waits for answers (`cohort.timeout`), also evaluations."""
        return self._server_config.terms.deadline

    @property
    def data_settings(self) -> DataSettings:
        """The data settings of the run on this device."""
        return self._config.data

    def hello(self) -> bytes:
        """Return the hello with which this client introduces itself."""

        def introduce() -> bytes:
            check_extensions(self._config.flat(), on_client=True)
            session = self._sessions.read_session(self._run_id)
            last_round = session.position.round if session else 0
            counts = {split: len(self._data.in_split(split)) for split in Split}
            self._guard.add_introduction(self._run_id, counts)
            hides = self._hides_examples
            return introduction(self._runtime, self._data, last_round, hides).encode()

        return self._reply_or_refuse(b"", introduce)

    def catch_up(self, instruction: bytes, catch_up: CatchUp) -> bytes:
        """Bring the session to an instruction's start; return nothing unless it is a refusal.

        The session is kept even if carrying out the instruction fails.
        """
        return self._reply_or_refuse(instruction, lambda: self._catch_up(instruction, catch_up))

    def train(self, instruction: bytes) -> bytes:
        """Take the local steps, and return the report; a repeated instruction gets the stored one.

        The session must have caught up.
        """
        return self._reply_or_refuse(instruction, lambda: self._train(instruction))

    def evaluate(self, instruction: bytes, personal: bool) -> bytes:
        """Evaluate on the instruction's split; the session must have caught up.

        Args:
            instruction: evaluate instruction, a frame.
            personal: whether to take the private rounds and to evaluate the personal model and
                its baselines, and not the global model alone.
        """
        return self._reply_or_refuse(
            instruction, lambda: self._evaluate(instruction, personal), personal
        )

    def receive_blob(self, part: bytes) -> bytes:
        """Refuse a part of a file: this client was loaded with all files that its run needs.

        A resident trainer receives parts before it has a client for the run; the clients of a
        simulation share the store of their machine, into which nothing is sent.
        """
        return self.refuse(part, FrameError("a blob part was sent to a client that lacks no blob"))

    def mask(self, frame: bytes) -> bytes:
        """Return the answer to a frame of secure aggregation; nothing to sealed shares."""

        def answer() -> bytes:
            if self._masking is None:
                raise MaskingError("this client masks no reports in this run")
            return self._masking.answer(frame)

        return self._reply_or_refuse(b"", answer)

    def take_private_rounds(self) -> bytes:
        """Take the private rounds that are due from one state of this client's run; send nothing.

        Returns:
            The run id; empty if none were due.

        Raises:
            TrainingError, ReplayError, LedgerError: those of `Personalizer.take_next`.
        """
        run_id = self._run_id
        if (session := self._sessions.read_session(run_id)) is None:
            return b""
        self._runtime.use_threads()
        personalizer = self._personalizer_of(run_id, session)
        personalizer.note(session.position.round, session.state, session.digest)
        try:
            return run_id if personalizer.take_next() else b""
        finally:
            self._record_passes(run_id)

    def _catch_up(self, frame: bytes, catch_up: CatchUp) -> bytes:
        instruction = decode_instruction(frame)
        session = self._sessions.read_session(instruction.run_id)
        if session is None or session.token != token_of(frame):
            session = self._session_at(instruction, catch_up)
            self._sessions.write_session(instruction.run_id, session)
            if self._takes_private_rounds_between:
                self._note_private_rounds(instruction.run_id, session)
        return b""

    @property
    def _is_private(self) -> bool:
        return self._config.privacy.is_on

    @property
    def _hides_examples(self) -> bool:
        """Return whether nothing but noised sums may tell of this client's examples.

        Simulated clients evaluate for measurements; a live client never does with privacy.
        """
        is_measured = self._config.privacy.allows_evaluation and bool(self._data.client_count)
        return self._is_private and not is_measured

    @property
    def _run_id(self) -> bytes:
        """The id of the run of these settings."""
        runtime = self._runtime
        return run_id_of(self._server_config, runtime.layout, runtime.model_id)

    @property
    def _takes_private_rounds_between(self) -> bool:
        """Return whether private rounds are taken before the server asks for the personal model."""
        return self._has_idle_time or self._config.personal.when != "end"

    def _note_private_rounds(self, run_id: bytes, session: Session) -> None:
        """Note the session's state if private rounds are due; without idle time, take them.

        An error is logged: what the federation asks for is carried out all the same.
        """
        try:
            personalizer = self._personalizer_of(run_id, session)
            noted = personalizer.note(session.position.round, session.state, session.digest)
            if noted and not self._has_idle_time:
                personalizer.take()
        except SamaraError as error:
            log.warning("client %d: the private rounds failed: %s", self._client, error)

    def _personalizer_of(self, run_id: bytes, session: Session) -> Personalizer:
        config, runs = self._config, None
        if self._has_idle_time:  # a live client, whose folder holds its runs side by side
            runs = run_folder(config, run_id).parent
        return runtime_personalizer(
            *(self._runtime, self._data, config, run_id, self._interrupted, runs),
            common=session.common_state,
        )

    def _private_state(self, run_id: bytes, session: Session) -> NDArray[np.int64]:
        """Return the private state for the personal comparison; what is missing in it is taken."""
        personalizer = self._personalizer_of(run_id, session)
        if not self._takes_private_rounds_between:
            return personalizer.recorded_private_state(session.state)
        return personalizer.private_state(session.position.round, session.state, session.digest)

    def _train(self, frame: bytes) -> bytes:
        terms = self._config.terms
        if terms.privacy and terms.privacy.is_masked and self._masking is None:
            raise MaskingError("this client masks no reports, and the run asks for masked ones")
        parts = composition(terms, self._runtime.layout)

        def train(
            instruction: TrainInstruction, session: Session
        ) -> Report | AnyVectorReport | MaskedReport:
            if instruction.track == INTERCEPT_TRACK:
                report = report_intercept(self._learner, terms, instruction, session.state)
            else:
                private = intercept_for_training(self._learner, terms, session.state)
                model = parts.model(session.state, private)
                report = take_local_steps(
                    self._runtime, self._data, instruction, model, parts.shared
                )
            self._record_passes(instruction.run_id)
            if terms.privacy is None:
                return report
            hidden = make_private(report, instruction, terms.privacy)
            return self._masking.mask(hidden) if self._masking else hidden

        return self._report_once(frame, self._session_at, train)

    def _evaluate(self, frame: bytes, personal: bool) -> bytes:
        data, terms = self._data, self._config.terms

        def evaluate(instruction: EvaluateInstruction) -> tuple[EvaluationColumn, ...]:
            if self._hides_examples:
                refuse_evaluation(instruction)
            session, split = self._session_at(instruction), instruction.split
            state = session.state
            if not data.in_split(Split.TRAIN) and (personal or terms.method == "readout"):
                raise DataError("this client has no training example left to personalize with")
            data.most_evaluated = self._guard.introduced(instruction.run_id)
            if personal:
                private = self._private_state(instruction.run_id, session)
                columns = evaluate_personal_model(
                    self._learner, terms, state, private, split, session.common_state
                )
            else:
                columns = evaluate_global_model(
                    self._learner, terms, state, split, session.common_state
                )
            self._record_passes(instruction.run_id)
            return columns

        return self._evaluate_once(frame, personal, evaluate)

    def _record_passes(self, run_id: bytes) -> None:
        """Write the rows that went through the model for a run since the call before."""
        if self._pass_counts:
            self._pass_counts.add(run_id, self._data.take_passes())

    def _session_at(self, instruction: Instruction, catch_up: CatchUp | None = None) -> Session:
        """Return the session at an instruction's start, without a catch-up the stored one."""
        missed = catch_up or CatchUp()
        return catch_up_session(self._sessions, self._runtime, instruction, missed, self._reach)


def introduction(
    runtime: ModelRuntime, data: ClientData, last_round: int, hides_examples: bool = False
) -> Hello:
    """Return the hello of a client.

    Args:
        runtime: model runtime.
        data: examples of the client.
        last_round: last round in the client's state.
        hides_examples: whether it says nothing of its examples, not even how many there are.
    """
    facts = runtime.facts() | {
        "clients": data.client_count or 0,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if not hides_examples:
        counts = {split.name.lower(): len(data.in_split(split)) for split in Split}
        facts[SPLIT_EXAMPLES] = counts
        if isinstance(runtime.task, GenerationTask):
            texts = {split.name.lower(): data.tokenized(split) for split in Split}
            facts[SPLIT_TOKENS] = {key: int(own.token_counts.sum()) for key, own in texts.items()}
            facts[SPLIT_BYTES] = {key: own.byte_count for key, own in texts.items()}
    if (
        data.client_count and not hides_examples
    ):  # a hash of a person's own few examples could be recognised
        facts["fingerprints"] = {
            split.name.lower(): data_fingerprint(data.in_split(split)) for split in Split
        }
    return Hello(
        data.client,
        0 if hides_examples else len(data.in_split(Split.TRAIN)),
        last_round,
        runtime.model_id,
        runtime.layout.to_json(),
        json.dumps(facts, sort_keys=True),
    )
