"""What is personal stays here: private rounds on top of the global model, and how they compare.

A private round is a round with a cohort of one, on a track of its own: the same estimator, the
same exact replay, a ledger that never leaves the client. How the two states make the model that a
person uses is the method's affair (client/personal/methods.py).
"""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from client.personal.methods import KEPT_SHARES, NOTHING, composition, kept_share, pull
from client.training.trainer import Examples, Trainer, figures
from shared.config import RunConfig
from shared.directions import round_root
from shared.errors import ReplayError, TrainingError
from shared.frames.evaluation import EvaluationColumn
from shared.frames.instructions import PERSONAL_TRACK, SeedPolicy, Split, TrainInstruction, token_of
from shared.frames.report import Report
from shared.layout import Layout
from shared.ledger.ledger import Ledger
from shared.ledger.reading import read_ledger
from shared.ledger.records import LedgerHeader
from shared.replay import Shrink, check_fits, digest, quantize, replay, zero_state
from shared.round_delta import Contributor, DerivedSeeds, Group, RoundDelta, revert_delta
from shared.runs import run_folder
from shared.step_record import STEP_SIZE_FILE, StepRecord
from shared.step_size import Observation, StepSize
from shared.tasks.objectives import cross_entropy

log = logging.getLogger("samara.client")

PERSONALIZED = "personalized"
"""The column of the model that a run's method makes for a client."""
BIAS_PENALTY = 1e-3
"""Keeps a label bias finite where a client has seen one label only."""


def personalized(
    trainer: Trainer,
    config: RunConfig,
    state: NDArray[np.int64],
    client: int,
    clients: int,
    ledger: Ledger | None = None,
) -> NDArray[np.int64]:
    """The private state after the private rounds: int64 [d], for `Composition.model`.

    Args:
        trainer: of the model.
        config: gives the method, the private rounds and their learning rate, and steps, queries,
            batch.
        state: int64 [d] of the federation, which the private rounds leave alone.
        client: which client.
        clients: of how many.
        ledger: where the rounds are kept; those that it already holds are not repeated.

    Raises:
        TrainingError: if a loss is not finite in the first round.
        ReplayError: if the first round leaves the exact range; a later one that does is taken back
            like any rise of the loss.
        LedgerError: if the ledger cannot be written.
    """
    layout, rounds = trainer.layout, config.private_rounds
    parts, pulled = composition(config, layout), pull(config)
    private = ledger.state if ledger else zero_state(layout.size)
    done = ledger.position.round if ledger else 0
    deltas = [record.delta for record in read_ledger(ledger.folder)] if ledger else []
    rate = config.personal.learning_rate
    given = None if rate == "auto" else rate
    file = ledger.folder.with_name(f"personal_{STEP_SIZE_FILE}") if ledger else None
    step_sizes = StepRecord(StepSize(rounds, given, config.epsilon), file, min(done, rounds))

    def take(delta: RoundDelta) -> NDArray[np.int64]:
        """The private state one round later."""
        deltas.append(delta)
        if ledger is None:
            entries = delta.scalar_groups()
            return replay(private, entries, layout.distribution, trainer.backend)
        ledger.append(delta)
        ledger.compact(delta.round)
        return ledger.state

    for number in range(done + 1, rounds + 1):
        model = parts.model(state, private)
        instruction = _private_instruction(config, number, layout, model, step_sizes.size)
        report: Report | None = None
        try:
            report = trainer.train(instruction, model, client, clients, parts.private)
        except (ReplayError, TrainingError):
            if number == 1:
                raise
        size = step_sizes.note(_observed(instruction, report))
        if report is not None and size.back_to is None:
            private = take(_private_delta(instruction, report, pulled))
            continue
        undone = [delta for delta in deltas if delta.round > (size.back_to or 0)]
        private = take(_taken_back(instruction, undone, private))
        log.warning(
            "client %d: private round %d leads too far and is taken back; "
            "learning rate %.3g from now on",
            *(client, number, size.learning_rate),
        )
    if config.method == "mixture" and done <= rounds:
        data = trainer.share(client, clients, Split.VALIDATION)
        kept = _mixed(trainer, state, private, data)
        private = take(RoundDelta(rounds + 1, PERSONAL_TRACK, bytes(8), (), kept))
    return private


def _mixed(
    trainer: Trainer, w: NDArray[np.int64], p: NDArray[np.int64], data: Examples
) -> tuple[Shrink, ...]:
    """The records that leave of p the share with which w + p suits these examples best."""

    def loss_of(share: float) -> float:
        if not len(data.labels):
            return math.nan
        kept = replay(p, KEPT_SHARES[share], trainer.layout.distribution)
        return float(cross_entropy(trainer.scores(w + kept, data)[None], data.labels)[0])

    return KEPT_SHARES[kept_share(loss_of)]


def compared(
    trainer: Trainer,
    config: RunConfig,
    run_id: bytes,
    state: NDArray[np.int64],
    client: int,
    clients: int,
    split: Split = Split.TEST,
) -> tuple[EvaluationColumn, ...]:
    """Every way to serve this client, on its own test examples; on others only its own model.

    Base rate always answers the client's commonest training label, without looking at the text.
    Zero-shot is the base alone; label bias adds one number per label, fitted to the client's
    training labels, and so tells a user's base rates from the user; global is the federation's
    model; personalized is what the run's method makes for the client. Finetune has local-only
    beside it: its private rounds from the base, without a federation.

    Args:
        trainer: of the model.
        config: of the run.
        run_id: names the run, 8 bytes.
        state: int64 [d], of the federation.
        client: which client.
        clients: of how many.
        split: which of the client's examples.
    """
    parts = composition(config, trainer.layout)
    train = trainer.share(client, clients, Split.TRAIN)
    data = trainer.share(client, clients, split)
    private = _kept(trainer, config, run_id, state, client, clients)
    own = trainer.scores(parts.model(state, private), data)
    if split is not Split.TEST:
        return (figures(PERSONALIZED, own, data.labels),)
    nothing = zero_state(len(state))
    zero_shot = trainer.scores(nothing, data)
    bias = fitted_bias(trainer.scores(nothing, train), train.labels)
    scores = {
        "base rate": np.broadcast_to(base_rate(train.labels, len(bias)), zero_shot.shape),
        "zero-shot": zero_shot,
        "label bias": zero_shot + bias,
    }
    if config.method == "finetune":
        local = personalized(trainer, config, nothing, client, clients)
        scores["local-only"] = trainer.scores(local, data)
    scores |= {"global": trainer.scores(parts.model(state), data), PERSONALIZED: own}
    return tuple(figures(name, its, data.labels) for name, its in scores.items())


def _kept(
    trainer: Trainer,
    config: RunConfig,
    run_id: bytes,
    state: NDArray[np.int64],
    client: int,
    clients: int,
) -> NDArray[np.int64]:
    """The private state, with the rounds in the client's own ledger."""
    header = LedgerHeader(PERSONAL_TRACK, run_id, trainer.layout.hash)
    folder = personal_ledger(config, run_id, client)
    ledger = Ledger(folder, header, trainer.layout, config.ledger.snapshot_every)
    if ledger.recovered:
        log.warning("%s", ledger.recovered)
    try:
        return personalized(trainer, config, state, client, clients, ledger)
    finally:
        ledger.close()


def personal_ledger(config: RunConfig, run_id: bytes, client: int) -> Path:
    """The folder where a client of this machine keeps its personal ledger."""
    return run_folder(config, run_id) / "clients" / str(client) / "personal.ledger"


def base_rate(labels: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """Log frequencies of a client's training labels, each counted once more: float32 [classes].

    Args:
        labels: int64 [n], from 0 to classes − 1.
        classes: how many labels the task has.
    """
    counts = np.bincount(labels, minlength=classes) + 1
    frequencies: NDArray[np.float64] = counts / counts.sum()
    return np.log(frequencies).astype(np.float32)


def fitted_bias(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """The label bias that fits best on a client's training examples: float32 [labels].

    Args:
        scores: float32 [n, labels] of the base.
        labels: int64 [n].
    """

    def objective(bias: NDArray[np.float64]) -> float:
        loss = cross_entropy((scores + bias)[None].astype(np.float32), labels)[0]
        return float(loss + BIAS_PENALTY * bias @ bias)

    best: NDArray[np.float64] = minimize(
        objective, np.zeros(scores.shape[1]), method="Nelder-Mead"
    ).x
    return best.astype(np.float32)


def _private_instruction(
    config: RunConfig, number: int, layout: Layout, state: NDArray[np.int64], size: StepSize
) -> TrainInstruction:
    """What a client asks of itself; seeds differ between clients and from the federation's."""
    return TrainInstruction(
        run_id=bytes(8),
        round=number,
        track=PERSONAL_TRACK,
        steps=config.steps,
        queries=config.queries,
        batch=config.batch,
        seed_policy=SeedPolicy.INDEPENDENT,
        root=round_root(config.seed, number, PERSONAL_TRACK),
        epsilon=config.epsilon,
        learning_rate=size.learning_rate,
        clip=config.clip or size.clip,
        deadline=0.0,
        layout_hash=layout.hash,
        start_digest=digest(layout.hash, state),
        curvature_every=size.curvature_every(config.queries, config.differences),
        differences=config.differences,
    )


def _private_delta(
    instruction: TrainInstruction, report: Report, pulled: tuple[Shrink, ...]
) -> RoundDelta:
    coefficients = instruction.coefficients(instruction.clipped(report.gradients))
    seed_stream = instruction.seed_stream(report.client)
    seeds = DerivedSeeds(instruction.root, seed_stream, *coefficients.shape)
    groups = tuple(Group(instruction.round, seeds, one) for one in quantize(coefficients.ravel()))
    contributor = Contributor(report.client, report.examples, len(coefficients))
    entries: tuple[Group | Shrink, ...] = (*groups, *pulled)
    return RoundDelta(instruction.round, PERSONAL_TRACK, report.token, (contributor,), entries)


def _taken_back(
    instruction: TrainInstruction, undone: Sequence[RoundDelta], private: NDArray[np.int64]
) -> RoundDelta:
    """A round that takes others back, or everything where these cannot be taken back exactly."""
    number, token = instruction.round, token_of(instruction.encode())
    try:
        delta = revert_delta(number, PERSONAL_TRACK, token, undone)
        check_fits(private, delta.changes)
    except ReplayError:  # what shrinks have rounded off is gone, but the global model is there
        return RoundDelta(number, PERSONAL_TRACK, token, (), NOTHING)
    return delta


def _observed(instruction: TrainInstruction, report: Report | None) -> Observation:
    """What a private round tells about the step size; None went out of all bounds."""
    if report is None:
        return Observation(math.inf, 0.0, 0.0, 0.0, instruction.learning_rate, None, 0)
    squares = np.square(instruction.clipped(report.gradients))
    energy = float(squares.sum()) / instruction.queries**2
    directions = instruction.measured_directions(report.steps)
    return Observation(
        report.mean_loss,
        float(squares.mean()),
        energy,
        energy,
        instruction.learning_rate,
        report.curvature,
        directions,
    )
