"""Private rounds: the steps that a client takes alone, on top of the global model.

A private round is a round with a cohort of one, on its own track. It uses the same estimator and
the same exact replay as a round of the federation. Its ledger never leaves the client. The method
(client/personal/methods.py) determines how the two states combine into the personal model.

Tasks without fixed labels are texts, and rows with their own candidates. For them, rounds that do
not lower the loss on the client's validation examples are reverted. The client's model is then the
global model.
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.components import train_for_a_round
from samara.client.personal.learner import Learner
from samara.client.personal.methods import (
    ERASURE,
    KEPT_SHARES,
    choose_kept_share,
    composition,
    pull_shrinks,
)
from samara.shared.errors import ReplayError, TrainingError
from samara.shared.protocol.frames.instructions import (
    PERSONAL_TRACK,
    Split,
    TrainInstruction,
    make_local_instruction,
    token_of,
)
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.replay import (
    DenseValues,
    Shrink,
    check_fits,
    digest,
    quantize,
    replay,
    zero_state,
)
from samara.shared.protocol.round_delta import (
    Contributor,
    Group,
    RoundDelta,
    revert_delta,
    source_of,
)
from samara.shared.protocol.step_size import (
    STEP_SIZE_FILE,
    Observation,
    RecordedStepSize,
    StepSize,
    component_rate,
)
from samara.shared.tasks.label_scores import evaluation_column
from samara.shared.terms.run_terms import RunTerms

MOST_OWN_NUMBERS = 2**22
"""Maximum total number of elements in all directions of a private round with components. In float64
they take 32 MiB.
"""

log = logging.getLogger("samara.client")


def personal_ledger(folder: Path) -> Path:
    """Return the folder of a client's personal ledger.

    Args:
        folder: folder of the client's files in a run's folder.
    """
    return folder / "personal.ledger"


def step_size_file(ledger: Path, first: int) -> Path:
    """Return the file with the step sizes of the private rounds that start from a state.

    Args:
        ledger: folder of the personal ledger.
        first: number of the first of these rounds.
    """
    name = f"personal_{STEP_SIZE_FILE}"
    return ledger.with_name(name if first == 1 else f"{first}_{name}")


def open_personal_ledger(
    folder: Path, run_id: bytes, layout: Layout, snapshot_every: int
) -> Ledger:
    """Open a client's personal ledger for writing, or create it.

    Args:
        folder: folder of the client's files in a run's folder.
        run_id: run id, 8 bytes.
        layout: layout of the adapter.
        snapshot_every: number of records between snapshots; 0 for no snapshots.

    Raises:
        LedgerError: if the ledger cannot be opened.
    """
    header = LedgerHeader(PERSONAL_TRACK, run_id, layout.hash)
    ledger = Ledger(personal_ledger(folder), header, layout, snapshot_every)
    if ledger.recovered:
        log.warning("%s", ledger.recovered)
    return ledger


def run_private_rounds(
    learner: Learner,
    terms: RunTerms,
    state: NDArray[np.int64],
    ledger: Ledger | None = None,
    first: int = 1,
    began_with: tuple[DenseValues, ...] = (),
) -> NDArray[np.int64]:
    """Take a client's private rounds that start from one state, and return its private state.

    Args:
        learner: model and examples of the client.
        terms: terms of the run: method, private rounds and their learning rate, steps, queries and
            batch.
        state: int64 [d], state of the federation; it is not changed.
        ledger: personal ledger that records the rounds; recorded rounds are not repeated.
        first: number in the ledger of the first round from this state. Earlier records were taken
            from other states. The private state continues from these records. With
            `personal.retrain`, the first record erases the private state instead.
        began_with: initial values of the private state, recorded first; empty for zeros.

    Returns:
        int64 [d], for `Composition.model`.

    Raises:
        TrainingError: if a loss is not finite in the first round.
        ReplayError: if the first round leaves the exact range of the state. A later round that
            fails is reverted, like a round after which the loss has risen.
        LedgerError: if the ledger cannot be written.
    """
    layout = learner.layout
    rounds = terms.private_rounds
    parts = composition(terms, layout)
    pull = pull_shrinks(terms)
    private = ledger.state if ledger else zero_state(layout.size)
    recorded = ledger.position.round if ledger else 0
    deltas = [record.delta for record in read_ledger(ledger.folder)] if ledger else []

    def apply(delta: RoundDelta) -> NDArray[np.int64]:
        """Record a round delta, and return the private state after it."""
        deltas.append(delta)
        if ledger is None:
            entries = delta.scalar_groups()
            return replay(private, entries, layout.distribution, learner.backend)
        ledger.append(delta)
        ledger.compact(delta.round)
        return ledger.state

    before = first - 1  # number of records before the first round
    beginning: tuple[Shrink | DenseValues, ...] = began_with if first == 1 else ()
    if terms.retrains and first > 1:
        beginning = (*ERASURE, *began_with)
    if beginning:
        before += 1
        if recorded < before:
            private = apply(RoundDelta(before, PERSONAL_TRACK, bytes(8), (), beginning))
    done = max(recorded - before, 0)
    step_sizes = _step_record(terms, layout, ledger, first, min(done, rounds))
    for number in range(before + done + 1, before + rounds + 1):
        model = parts.model(state, private)
        instruction = _private_instruction(terms, number, layout, model, step_sizes.size)
        report: Report | None = None
        try:
            report = train_for_a_round(learner, instruction, model, parts.private)
        except (ReplayError, TrainingError):
            if number == before + 1:
                raise
        size = step_sizes.record(_observation(instruction, report))
        if report is not None and size.back_to is None:
            private = apply(_private_delta(instruction, report, pull))
            continue
        back_to = before + (size.back_to or 0)
        reverted = [delta for delta in deltas if delta.round > back_to]
        token = token_of(instruction.encode())
        private = apply(_revert_or_erase(number, token, reverted, private))
        log.warning(
            "client %d: the loss rises too far in private round %d; reverting to the state after "
            "round %d, learning rate %.3g from now on",
            *(learner.client, number, back_to, size.learning_rate),
        )
    if terms.method == "mixture" and done <= rounds:
        shrinks = _mixture_shrinks(learner, state, private)
        private = apply(RoundDelta(before + rounds + 1, PERSONAL_TRACK, bytes(8), (), shrinks))
    elif not learner.labels and done <= rounds:
        taken = [delta for delta in deltas if delta.round > before]
        undone = _revert_or_erase(before + rounds + 1, bytes(8), taken, private)
        earlier = replay(private, undone.scalar_groups(), layout.distribution, learner.backend)
        models = parts.model(state, earlier), parts.model(state, private)
        if undone.entries and not _has_lower_loss(learner, *models):
            private = apply(undone)
            log.info(
                "client %d: its private rounds are undone, because they do not lower the loss of "
                "its validation examples",
                learner.client,
            )
    return private


def _step_record(
    terms: RunTerms, layout: Layout, ledger: Ledger | None, first: int, recorded_rounds: int
) -> RecordedStepSize:
    """Return the record, beside the ledger, of step sizes of private rounds from one state."""
    given = terms.private_learning_rate
    if given is None and terms.differences == "components":
        given = component_rate(layout, terms.private_rounds, _directions(terms, layout))
    size = StepSize(terms.private_rounds, given, terms.epsilon)
    file = step_size_file(ledger.folder, first) if ledger else None
    return RecordedStepSize(size, file, recorded_rounds)


def _mixture_shrinks(
    learner: Learner, w: NDArray[np.int64], p: NDArray[np.int64]
) -> tuple[Shrink, ...]:
    """Return the shrinks of p that minimize the validation loss of w + p."""

    def loss_of(share: float) -> float:
        kept = replay(p, KEPT_SHARES[share], learner.layout.distribution)
        scored = learner.score(w + kept, Split.VALIDATION)
        return evaluation_column("", *scored).mean_loss if len(scored.labels) else math.nan

    return KEPT_SHARES[choose_kept_share(loss_of)]


def _private_instruction(
    terms: RunTerms, number: int, layout: Layout, state: NDArray[np.int64], size: StepSize
) -> TrainInstruction:
    """Return the instruction of a private round, whose seeds differ from the federation's seeds."""
    return make_local_instruction(
        number,
        PERSONAL_TRACK,
        terms.seed,
        steps=terms.steps,
        queries=_directions(terms, layout),
        batch=terms.batch,
        epsilon=terms.epsilon,
        learning_rate=size.learning_rate,
        clip=terms.clip or size.clip,
        layout_hash=layout.hash,
        start_digest=digest(layout.hash, state),
        curvature_every=size.curvature_every(terms.queries, terms.differences),
        differences=terms.differences,
        # no later round would add a shift to the private part
        is_profiled=terms.is_profiled and not terms.reports_shifts,
    )


def _directions(terms: RunTerms, layout: Layout) -> int:
    """Return the number of directions in a step of a private round.

    With components, only memory limits the number, because components are not sent.
    """
    if terms.differences == "components":
        return min(layout.size, max(1, MOST_OWN_NUMBERS // layout.size))
    return terms.queries


def _private_delta(
    instruction: TrainInstruction, report: Report, pull: tuple[Shrink, ...]
) -> RoundDelta:
    """Return the round delta that applies the report for a private round."""
    coefficients = instruction.coefficients(instruction.clipped(report.gradients))
    seeds = source_of(instruction, report.client, len(coefficients))
    groups = tuple(
        Group(instruction.round, seeds, block) for block in quantize(coefficients.ravel())
    )
    contributor = Contributor(report.client, report.examples, len(coefficients))
    entries: tuple[Group | Shrink, ...] = (*groups, *pull)
    return RoundDelta(instruction.round, PERSONAL_TRACK, report.token, (contributor,), entries)


def _has_lower_loss(learner: Learner, before: NDArray[np.int64], after: NDArray[np.int64]) -> bool:
    """Return whether the second model has a lower validation loss; True without examples.

    A few texts suffice, because their loss is a mean over many tokens.
    """
    if not learner.data_hash(Split.VALIDATION):
        return True
    old, new = (
        evaluation_column("", *learner.score(model, Split.VALIDATION)).mean_loss
        for model in (before, after)
    )
    return new < old


def _revert_or_erase(
    number: int, token: bytes, reverted: Sequence[RoundDelta], private: NDArray[np.int64]
) -> RoundDelta:
    """Return a round delta that reverts the given rounds exactly.

    If that is impossible, the delta erases the private state.
    """
    try:
        delta = revert_delta(number, PERSONAL_TRACK, token, reverted)
        check_fits(private, delta.changes)
    except ReplayError:  # a shrink has rounded bits, so only the global model remains
        return RoundDelta(number, PERSONAL_TRACK, token, (), ERASURE)
    return delta


def _observation(instruction: TrainInstruction, report: Report | None) -> Observation:
    """Return the observation of a private round that adapts the step size.

    A failed round has no report; its loss counts as infinite.
    """
    if report is None:
        return Observation(math.inf, 0.0, 0.0, 0.0, instruction.learning_rate, None, 0)
    squares = np.square(instruction.clipped(report.gradients))
    squared_norm = float(squares.sum()) / instruction.queries**2
    directions = instruction.measured_directions(report.steps)
    return Observation(
        report.mean_loss,
        float(squares.mean()),
        squared_norm,
        squared_norm,
        instruction.learning_rate,
        report.curvature,
        directions,
    )
