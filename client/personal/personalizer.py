"""The private rounds of a client: from which states they are taken, and when.

A state of the federation from which private rounds are due is noted as soon as the client has it.
The private rounds are taken from exactly this state, at once in a simulation, later in the idle
time of a live client: the federation does not wait for them, and both give the same bits. The
private state p stays when the federation moves on: the personal model is then the new w with p.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from samara.client.personal.kept_label_bias import LabelBiases
from samara.client.personal.learner import Learner, State
from samara.client.personal.methods import composition
from samara.client.personal.personalizations import Personalizations, Score, StartState
from samara.client.personal.private_fit import record_private_fit, record_subtraction
from samara.client.personal.private_rounds import (
    open_personal_ledger,
    run_private_rounds,
    step_size_file,
)
from samara.shared.errors import ReplayError, TrainingError
from samara.shared.frames.instructions import Split
from samara.shared.label_scores import Confusion, evaluation_column
from samara.shared.ledger.ledger import Ledger
from samara.shared.run_terms import RunTerms, fits_private_part


class Personalizer:
    """The private rounds of one client in a run; one thread uses it.

    Args:
        learner: model and examples of the client.
        terms: terms of the run on this client.
        run_id: run id, 8 bytes.
        folder: folder of the client's own files in that of the run.
        snapshot_every: records between snapshots of the personal ledger; 0 for none.
        runs: folder of all runs of the client, with the label bias of an earlier one; None if it
            begins with none.
        common: int64 [d], common intercept in the federation's state by now; None without one.
            Private parts are fitted without it and are that much less, so that it changes no
            personal model.
    """

    def __init__(
        self,
        learner: Learner,
        terms: RunTerms,
        run_id: bytes,
        folder: Path,
        snapshot_every: int,
        runs: Path | None = None,
        common: State | None = None,
    ) -> None:
        self._learner, self._terms, self._common = learner, terms, common
        self._run_id, self._folder, self._snapshot_every = run_id, folder, snapshot_every
        self._files = Personalizations(folder, learner.layout)
        self._label_biases = LabelBiases(learner, terms, folder, runs)

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
        self._subtract_common()
        if not self._terms.makes_personal_models or not self._is_due_from(number, digest):
            return False
        self._files.write_next(StartState(number, state, digest))
        return True

    def take(self) -> bool:
        """Take the private rounds that are due, and record them; return whether there were any.

        Raises:
            TrainingError, ReplayError, LedgerError: those of `take_next`.
        """
        taken = 0
        while self.take_next():
            taken += 1
        return taken > 0

    def take_next(self) -> bool:
        """Take the private rounds that are due from one state; return whether there were any.

        Whatever interrupts it leaves a ledger of whole rounds, from which the next call goes on. A
        client without training examples waits until it has some.

        Raises:
            TrainingError, ReplayError: those of `run_private_rounds` and `record_private_fit`; the
                rounds that failed are left out then.
            LedgerError: if the personal ledger cannot be read or written.
        """
        if not self.is_due or not self._learner.data_hash(Split.TRAIN):
            return False
        with closing(self._open_ledger()) as ledger:
            if (start := self._files.begun or self._begin(ledger)) is None:
                return False
            private = self._train(start, ledger)
            self._label_biases.keep(private if self._common is None else private + self._common)
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
        self._subtract_common()
        latest = self._files.latest
        if latest is None or (self._terms.when != "end" and latest.digest != digest):
            self._files.write_next(StartState(number, state, digest))
        self.take()
        with closing(self._open_ledger()) as ledger:
            return ledger.state

    def _subtract_common(self) -> None:
        """Subtract the common intercept from a private part that was fitted before it was there.

        A part is, if its fit is the last record; the subtraction is a record of its own.

        Raises:
            ReplayError, LedgerError: if it cannot be recorded.
        """
        finished, begun = self._files.finished, self._files.begun
        if self._common is None or not (finished or begun):
            return
        with closing(self._open_ledger()) as ledger:
            last = ledger.position.round
            if begun and self._is_earlier(begun.round) and last < begun.first:
                self._files.drop_begun()
            elif begun and self._is_earlier(begun.round):  # a crash came before it was finished
                self._files.finish(begun, last, ledger.digest, None)
            finished = self._files.finished
            if finished and self._is_earlier(finished.global_round) and finished.last == last:
                record_subtraction(self._common, ledger, self._learner.layout)

    def _is_earlier(self, number: int) -> bool:
        """Return whether a state after a round of the federation has no common intercept yet."""
        return number < self._terms.intercept_round

    def _is_due_from(self, number: int, digest: bytes) -> bool:
        latest, terms = self._files.latest, self._terms
        is_new = latest is None or latest.digest != digest
        if is_new and terms.is_last(number):
            return latest is None or terms.when != "end"
        since = latest.round if latest else 0
        interval = terms.interval
        if interval and is_new and number // interval > since // interval:
            return True
        if not terms.follows_data or not number:
            return False
        return latest is None or latest.data not in ("", self._learner.data_hash(Split.TRAIN))

    def _begin(self, ledger: Ledger) -> StartState | None:
        """Return the next state to take private rounds from, kept as begun; None if there is none.

        What an earlier version took at the end of a run is gone on with.
        """
        start, finished = self._files.next, self._files.finished
        if start is None:
            return None
        self._label_biases.begin(start.state, is_new=not ledger.position.round)
        data = self._learner.data_hash(Split.TRAIN)
        goes_on = finished is None and self._terms.when == "end"
        first = 1 if goes_on else ledger.position.round + 1
        before = self._score(start.state, ledger.state)
        start = replace(start, first=first, data=data, before=before)
        self._files.begin(start)
        return start

    def recorded_private_state(self, state: State) -> State:
        """Return the private state in the personal ledger, int64 [d]; what is missing is taken.

        Args:
            state: int64 [d], state of the federation after its last round.

        Raises:
            TrainingError, ReplayError, LedgerError: those of `run_private_rounds` and
                `record_private_fit`.
        """
        with closing(self._open_ledger()) as ledger:
            return self._make_private_part(state, ledger, 1)

    def _make_private_part(self, state: State, ledger: Ledger, first: int) -> State:
        """Return the private state after the private rounds, or the fit, from a state, int64 [d].

        Args:
            state: int64 [d], state of the federation.
            ledger: personal ledger, which records them; those in it already are not repeated.
            first: number in the ledger of the first record from this state.
        """
        if fits_private_part(self._terms.method):
            return record_private_fit(
                self._learner, self._terms, state, ledger, first, self._common
            )
        began_with = self._label_biases.began_with
        return run_private_rounds(self._learner, self._terms, state, ledger, first, began_with)

    def _train(self, start: StartState, ledger: Ledger) -> State:
        try:
            return self._make_private_part(start.state, ledger, start.first)
        except (TrainingError, ReplayError):
            self._files.drop_begun()
            raise

    def _score(self, w: State, p: State) -> Score | None:
        """Return the score of a personal model on the validation examples; None without any."""
        if not self._learner.data_hash(Split.VALIDATION):
            return None
        model = composition(self._terms, self._learner.layout).model(w, p)
        column = evaluation_column("", *self._learner.score(model, Split.VALIDATION))
        confusion = Confusion(column.counts)
        return Score(confusion.accuracy, column.mean_loss, confusion.examples)

    def _open_ledger(self) -> Ledger:
        return open_personal_ledger(
            self._folder, self._run_id, self._learner.layout, self._snapshot_every
        )
