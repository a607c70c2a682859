"""The private rounds of a client: from which states they are taken, and when.

A state of the federation from which private rounds are due is noted as soon as the client has it.
The private rounds are taken from exactly this state, at once in a simulation, later in the idle
time of a live client: the federation does not wait for them, and both give the same bits. The
private state p stays when the federation moves on: the personal model is then the new w with p.
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client.personal.methods import composition
from client.personal.personalizations import Personalizations, Score, StartState
from client.personal.private_fit import record_private_fit
from client.personal.private_rounds import (
    open_personal_ledger,
    run_private_rounds,
    step_size_file,
)
from client.training.client_data import ClientData
from client.training.local_steps import InterruptedSteps
from client.training.model_runtime import ModelRuntime, evaluation_column
from shared.config import RunConfig
from shared.errors import ReplayError, TrainingError
from shared.frames.instructions import Split
from shared.ledger.ledger import Ledger
from shared.runs import client_folder
from shared.tasks.metrics import Confusion

State = NDArray[np.int64]


class Personalizer:
    """The private rounds of one client in a run; one thread uses it.

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the run on this client.
        run_id: run id, 8 bytes.
        interrupted: keeps the finished steps of a round that an exception interrupts.
    """

    def __init__(
        self,
        runtime: ModelRuntime,
        data: ClientData,
        config: RunConfig,
        run_id: bytes,
        interrupted: InterruptedSteps | None = None,
    ) -> None:
        self._interrupted = interrupted
        self._runtime, self._data, self._config, self._run_id = runtime, data, config, run_id
        folder = client_folder(config, run_id, data.client)
        self._files, self._terms = Personalizations(folder, runtime.layout), config.terms

    @property
    def is_due(self) -> bool:
        """Return whether there is a state from which private rounds are to be taken."""
        return self._files.has_unfinished

    def note(self, number: int, state: State, digest: bytes) -> bool:
        """Keep a state of the federation if private rounds from it are due; return whether so.

        If the client has not begun with an earlier one yet, it will not.

        Args:
            number: last round of the federation in the state.
            state: int64 [d].
            digest: digest of the state, 32 bytes.

        Raises:
            LedgerError: if it cannot be kept.
        """
        if not self._terms.makes_personal_models or not self._is_due_from(number, digest):
            return False
        self._files.write_next(StartState(number, state, digest))
        return True

    def take(self) -> bool:
        """Take the private rounds that are due, and record them; return whether there were any.

        Whatever interrupts it leaves a ledger of whole rounds, from which the next call goes on. A
        client without training examples waits until it has some.

        Raises:
            TrainingError, ReplayError: those of `run_private_rounds` and `record_private_fit`; the
                rounds that failed are left out then.
            LedgerError: if the personal ledger cannot be read or written.
        """
        if not self.is_due or not self._data.in_split(Split.TRAIN):
            return False
        with closing(self._open_ledger()) as ledger:
            while (start := self._files.begun or self._begin(ledger)) is not None:
                private = self._train(start, ledger)
                after = self._score(start.state, private)
                self._files.finish(start, ledger.position.round, ledger.digest, after)
                if start.first > 1:  # what is over needs no step sizes; a run's first keeps them
                    step_size_file(ledger.folder, start.first).unlink(missing_ok=True)
        return True

    def private_state(self, number: int, state: State, digest: bytes) -> State:
        """Return the private state after the private rounds from a state, int64 [d].

        They are taken if they are missing. With ``personal.when = "end"`` those that are recorded
        are the ones, whatever state they started from.

        Args:
            number: last round of the federation in the state.
            state: int64 [d].
            digest: digest of the state, 32 bytes.

        Raises:
            TrainingError, ReplayError, LedgerError: those of `take`.
        """
        latest, settings = self._files.latest, self._config.personal
        if latest is None or (settings.when != "end" and latest.digest != digest):
            self._files.write_next(StartState(number, state, digest))
        self.take()
        with closing(self._open_ledger()) as ledger:
            return ledger.state

    def _is_due_from(self, number: int, digest: bytes) -> bool:
        latest, settings = self._files.latest, self._config.personal
        is_new = latest is None or latest.digest != digest
        if is_new and self._terms.is_last(number):
            return latest is None or settings.when != "end"
        since = latest.round if latest else 0
        interval = settings.interval
        if interval and is_new and number // interval > since // interval:
            return True
        if not settings.follows_data or not number:
            return False
        return latest is None or latest.data not in ("", self._data.hash_of(Split.TRAIN))

    def _begin(self, ledger: Ledger) -> StartState | None:
        """Return the next state to take private rounds from, kept as begun; None if there is none.

        What an earlier version took at the end of a run is gone on with.
        """
        start, finished = self._files.next, self._files.finished
        if start is None:
            return None
        data = self._data.hash_of(Split.TRAIN)
        goes_on = finished is None and self._config.personal.when == "end"
        first = 1 if goes_on else ledger.position.round + 1
        before = self._score(start.state, ledger.state)
        start = replace(start, first=first, data=data, before=before)
        self._files.begin(start)
        return start

    def _train(self, start: StartState, ledger: Ledger) -> State:
        runtime, data, config = self._runtime, self._data, self._config
        try:
            return make_private_part(
                runtime, data, config, start.state, ledger, start.first, self._interrupted
            )
        except (TrainingError, ReplayError):
            self._files.drop_begun()
            raise

    def _score(self, w: State, p: State) -> Score | None:
        """Return the score of a personal model on the validation examples; None without any."""
        examples = self._data.tokenized(Split.VALIDATION)
        if not len(examples.labels):
            return None
        for part in examples.parts:
            self._runtime.prepare(part)
        model = composition(self._config, self._runtime.layout).model(w, p)
        column = evaluation_column(
            "", self._runtime.scores(model, examples.prompts), examples.labels
        )
        accuracy = Confusion(column.counts).accuracy
        return Score(accuracy, column.mean_loss, len(examples.labels))

    def _open_ledger(self) -> Ledger:
        return open_personal_ledger(self._runtime, self._config, self._run_id, self._data.client)


def make_private_part(
    runtime: ModelRuntime,
    data: ClientData,
    config: RunConfig,
    state: State,
    ledger: Ledger,
    first: int = 1,
    interrupted: InterruptedSteps | None = None,
) -> State:
    """Return the private state after a client's private rounds, or fit, from a state, int64 [d].

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the run.
        state: int64 [d], state of the federation.
        ledger: personal ledger, which records them; those in it already are not repeated.
        first: number in the ledger of the first record from this state.
        interrupted: keeps the finished steps of a round that an exception interrupts.

    Raises:
        TrainingError, ReplayError, LedgerError: those of `run_private_rounds` and
            `record_private_fit`.
    """
    if config.method == "readout":
        return record_private_fit(runtime, data, config, state, ledger, first)
    return run_private_rounds(runtime, data, config, state, ledger, first, interrupted)


def make_recorded_private_part(
    runtime: ModelRuntime, data: ClientData, config: RunConfig, run_id: bytes, state: State
) -> State:
    """Return the private state in the personal ledger, int64 [d]; what is missing in it is taken.

    Args:
        runtime: model runtime.
        data: examples of the client.
        config: settings of the run.
        run_id: run id, 8 bytes.
        state: int64 [d], state of the federation.

    Raises:
        TrainingError, ReplayError, LedgerError: those of `make_private_part`.
    """
    with closing(open_personal_ledger(runtime, config, run_id, data.client)) as ledger:
        return make_private_part(runtime, data, config, state, ledger)
