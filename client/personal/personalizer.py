"""The schedule of a client's private rounds: from which states they start, and when.

When a client receives a state of the federation from which private rounds are due, it records the
state. The private rounds start from exactly this state. A simulation takes the rounds immediately.
A live client takes them later in its idle time, so that the federation does not wait. Both ways
give the same bits. When the federation moves on, the private state p stays: the personal model is
then the new w with p.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from samara.client.personal.kept_label_bias import LabelBiases
from samara.client.personal.learner import Learner, State
from samara.client.personal.methods import composition
from samara.client.personal.own_words import OwnWords, OwnWordsFile
from samara.client.personal.personalizations import Personalizations, Score, StartState
from samara.client.personal.private_fit import (
    NO_PRIOR,
    CommonPrior,
    record_private_fit,
    record_subtraction,
)
from samara.client.personal.private_rounds import (
    open_personal_ledger,
    run_private_rounds,
    step_size_file,
)
from samara.shared.errors import ReplayError, TrainingError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.replay import digest
from samara.shared.tasks.label_scores import Confusion, evaluation_column
from samara.shared.terms.run_terms import RunTerms, fits_private_part


class Personalizer:
    """The private rounds of one client in a run, for use by one thread.

    Args:
        learner: model and examples of the client.
        terms: terms of the run on this client.
        run_id: run id, 8 bytes.
        folder: folder of the client's files in the run's folder.
        snapshot_every: number of records between snapshots of the personal ledger; 0 for no
            snapshots.
        runs: folder of all runs of the client, which may contain the label bias of an earlier run;
            None disables its reuse.
        prior: common prior of the private intercepts. Private parts are fitted to the federation's
            state without the common intercept. The intercept is then subtracted from them, so that
            it changes no personal model. Private rounds start from the state as it is. The
            intercept is subtracted only from a private part that is older.
    """

    def __init__(
        self,
        learner: Learner,
        terms: RunTerms,
        run_id: bytes,
        folder: Path,
        snapshot_every: int,
        runs: Path | None = None,
        prior: CommonPrior = NO_PRIOR,
    ) -> None:
        self._learner, self._terms, self._prior = learner, terms, prior
        self._run_id, self._folder, self._snapshot_every = run_id, folder, snapshot_every
        self._files = Personalizations(folder, learner.layout)
        self._label_biases = LabelBiases(learner, terms, folder, runs)
        self._own_words = OwnWordsFile(folder)

    @property
    def is_due(self) -> bool:
        """True if private rounds from a recorded state are due."""
        return self._files.has_unfinished

    def note(self, number: int, state: State, digest: bytes) -> bool:
        """Record a state of the federation if private rounds from it are due.

        The state replaces an earlier state whose private rounds have not begun.

        Args:
            number: last round of the federation in the state.
            state: int64 [d].
            digest: digest of the state, 32 bytes.

        Returns:
            Whether private rounds from the state are due.

        Raises:
            LedgerError: if the state cannot be stored.
        """
        self._subtract_common()
        if not self._terms.makes_personal_models or not self._is_due_from(number, digest):
            return False
        self._files.write_next(StartState(number, state, digest))
        return True

    def take(self) -> bool:
        """Take and record all due private rounds, and return whether any were due.

        Raises:
            TrainingError, ReplayError, LedgerError: as in `take_next`.
        """
        taken = 0
        while self.take_next():
            taken += 1
        return taken > 0

    def take_next(self) -> bool:
        """Take the private rounds from the next recorded state, and return whether any were due.

        An interruption leaves a ledger of whole rounds, from which the next call continues. A
        client without training examples waits until it has some.

        Raises:
            TrainingError, ReplayError: as in `run_private_rounds` and `record_private_fit`. The
                failed rounds are then left out.
            LedgerError: if the personal ledger cannot be read or written.
        """
        if not self.is_due or not self._learner.data_hash(Split.TRAIN):
            return False
        self._subtract_common()
        with closing(self._open_ledger()) as ledger:
            if (start := self._files.begun or self._begin(ledger)) is None:
                return False
            private = self._train(start, ledger)
            common = self._prior.intercept if fits_private_part(self._terms.method) else None
            self._label_biases.keep(private if common is None else private + common)
            after = self._score(start.state, private)
            self.own_words(start.state, private)
            self._files.finish(start, ledger.position.round, ledger.digest, after)
            if (
                start.first > 1
            ):  # finished rounds need no step sizes, except those of a run's first state
                step_size_file(ledger.folder, start.first).unlink(missing_ok=True)
        return True

    def private_state(self, number: int, state: State, digest: bytes) -> State:
        """Take the due private rounds from a state, and return the private state.

        With ``personal.when = "end"``, recorded private rounds are not repeated, even if they
        started from another state.

        Args:
            number: last round of the federation in the state.
            state: int64 [d].
            digest: digest of the state, 32 bytes.

        Returns:
            int64 [d].

        Raises:
            TrainingError, ReplayError, LedgerError: as in `take`.
        """
        self._subtract_common()
        latest = self._files.latest
        if latest is None or (self._terms.when != "end" and latest.digest != digest):
            self._files.write_next(StartState(number, state, digest))
        self.take()
        with closing(self._open_ledger()) as ledger:
            return ledger.state

    def own_words(self, w: State, p: State) -> OwnWords | None:
        """Return and store the client's own words for a personal model; None without own words.

        Stored own words are computed again if they belong to another model or to other texts.

        Args:
            w: state of the federation, int64 [d].
            p: private state, int64 [d].

        Raises:
            LedgerError: if the own words cannot be stored.
        """
        if not self._terms.has_own_words:
            return None
        learner = self._learner
        model = composition(self._terms, learner.layout).model(w, p)
        texts = [learner.data_hash(split) for split in (Split.TRAIN, Split.VALIDATION)]
        made_of = " ".join((digest(learner.layout.hash, model).hex(), *texts))
        kept = self._own_words.read()
        if kept is None or kept.made_of != made_of:
            if (made := learner.own_words(model)) is None:
                return None
            kept = replace(made, made_of=made_of)
            self._own_words.write(kept)
        return kept

    def _subtract_common(self) -> None:
        """Subtract the common intercept from a private part that is older than the intercept.

        This happens only if the private part is the last record. The subtraction is one more
        record. Unfinished private rounds are finished before it.

        Raises:
            ReplayError, LedgerError: if the subtraction cannot be recorded.
        """
        finished, begun, common = self._files.finished, self._files.begun, self._prior.intercept
        if common is None or not (finished or begun):
            return
        with closing(self._open_ledger()) as ledger:
            last = ledger.position.round
            if begun and self._is_earlier(begun.round) and last < begun.first:
                self._files.drop_begun()
            elif begun and self._is_earlier(begun.round) and fits_private_part(self._terms.method):
                # a crash before the end
                self._files.finish(begun, last, ledger.digest, None)
            finished = self._files.finished
            if finished and self._is_earlier(finished.global_round) and finished.last == last:
                record_subtraction(common, ledger, self._learner.layout)

    def _is_earlier(self, number: int) -> bool:
        """Return whether the federation's state after a round precedes the common intercept."""
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
        """Begin the private rounds from the next state, and return the state; None without one.

        Private rounds that an earlier version of Samara began at the end of a run are continued.
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
        """Take missing private rounds, and return the recorded private state, int64 [d].

        Args:
            state: int64 [d], state of the federation after its last round.

        Raises:
            TrainingError, ReplayError, LedgerError: as in `run_private_rounds` and
                `record_private_fit`.
        """
        with closing(self._open_ledger()) as ledger:
            return self._make_private_part(state, ledger, 1)

    def _make_private_part(self, state: State, ledger: Ledger, first: int) -> State:
        """Return the private state after the private rounds or the fit that start from a state.

        Args:
            state: int64 [d], state of the federation.
            ledger: personal ledger, which records the rounds; recorded rounds are not repeated.
            first: number in the ledger of the first record from this state.

        Returns:
            int64 [d].
        """
        if fits_private_part(self._terms.method):
            return record_private_fit(self._learner, self._terms, state, ledger, first, self._prior)
        began_with = self._label_biases.began_with
        return run_private_rounds(self._learner, self._terms, state, ledger, first, began_with)

    def _train(self, start: StartState, ledger: Ledger) -> State:
        try:
            return self._make_private_part(start.state, ledger, start.first)
        except (TrainingError, ReplayError):
            self._files.drop_begun()
            raise

    def _score(self, w: State, p: State) -> Score | None:
        """Return a personal model's score on the validation examples; None without examples."""
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
