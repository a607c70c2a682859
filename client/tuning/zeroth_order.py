"""MeZO and P-RGE on one machine: a space, its steps, and the trajectory that can rebuild it."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.client.estimators.exact import (
    directional_derivatives,
    exact_estimator,
    mezo_exact_estimator,
)
from samara.client.estimators.mezo import (
    learning_rate_at,
    mezo_estimator,
    one_point_estimator,
    queries_at,
)
from samara.client.estimators.prge import Estimator, LossRequest, prge_estimator, run_estimator
from samara.client.forward.answer_losses import answer_losses
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.spaces.low_rank import LoRAFASpace
from samara.client.spaces.scaling import scaling_by
from samara.client.spaces.space import SharedPassSpace
from samara.client.spaces.streamed import StreamedFullSpace
from samara.client.tuning.descent import SGD, Adam, Descent, Momentum, UpdateRule
from samara.client.tuning.group_norms import (
    backward_gradient,
    d_of,
    estimate_gradient_norms,
    gradient_norms,
    parameter_norms,
)
from samara.client.tuning.methods import Optimizer
from samara.client.tuning.run_space import BLOCKS_FOLDER, make_space, scaling_plan
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.training_loss import mixed_precision, summed_loss
from samara.client.tuning.trajectory import TrajectoryWriter, make_header, read_trajectory
from samara.client.tuning.tuning_setup import EvaluationResult, TaskSplit, TuningSetup
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.model.replay_torch import backend_for
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.directions import query_seeds
from samara.shared.protocol.start import Start
from samara.shared.protocol.step_size import STEP_SIZE_FILE, Observation, RecordedStepSize, StepSize
from samara.shared.tasks.kinds import GenerationTask
from samara.shared.tasks.profiled_loss import shifts_of_rows

log = logging.getLogger("samara.tune")

TRAJECTORY_FILE = "trajectory.bin"
NORMS_ORDER = 65535
"""Number of the batch order for the norms in D. The directions of steps use lower numbers."""
NORMS_STREAM = 1
"""Number of the seed stream for the norms in D. The directions of steps use stream 0."""

_UPDATE_RULES: dict[Optimizer, type[SGD] | type[Momentum] | type[Adam]] = {
    "prge": SGD,
    "mezo": SGD,
    "mezo-momentum": Momentum,
    "mezo-adam": Adam,
}


def update_rule(settings: TuneSettings) -> UpdateRule:
    """Return the update rule of a zeroth-order method."""
    return _UPDATE_RULES[settings.optimizer](weight_decay=settings.weight_decay)


class ZerothOrder:
    """A training method that moves a space by projected gradients.

    Args:
        setup: setup whose model is trained or adapted.
        folder: folder of the run; training continues from a trajectory in it.
        settings_hash: hash of all inputs that determine the run's results, 32 bytes.

    Raises:
        SamaraError: if model and space do not fit together, or the trajectory cannot be continued.
    """

    def __init__(self, setup: TuningSetup, folder: Path, settings_hash: bytes) -> None:
        self._setup = setup
        self._path = folder / TRAJECTORY_FILE
        self._blocks = folder / BLOCKS_FOLDER
        settings = setup.settings
        self._rule = update_rule(settings)
        self._backend = backend_for(torch.device(settings.model.torch_device), settings.threads)
        self._schedule = Schedule(settings.grouping, settings.micro_batch)
        self._build_space()
        header = make_header(
            self._space,
            self._rule,
            model_id=setup.base.model_id,
            root=setup.root,
            epsilon=settings.epsilon,
            settings_hash=settings_hash,
        )
        self._writer = TrajectoryWriter(self._path, header, self._space)
        records = self._writer.trajectory.records
        self._steps = len(records)
        self._has_just_reverted = bool(records) and isinstance(records[-1], int)
        rate = None if settings.estimates_its_rate else settings.rate
        size = StepSize(settings.steps, rate, settings.epsilon)
        self._step_sizes = RecordedStepSize(size, folder / STEP_SIZE_FILE, self._steps)
        self._replay(None)

    @property
    def steps(self) -> int:
        """Number of steps taken, including reverted steps and reverts."""
        return self._steps

    @property
    def warning(self) -> str:
        """Warning about an incomplete step at the trajectory's end; empty without one."""
        return self._writer.trajectory.warning

    def step(self) -> float:
        """Estimate a gradient, record it, take the step, and return the mean loss.

        If the loss has risen beyond its noise, a revert is recorded instead: θ returns to the state
        with the lowest loss, and the learning rate is lowered.

        Raises:
            TrainingError: if a projected gradient is not finite.
            TrajectoryError: if the step cannot be written.
        """
        setup = self._setup
        step = self.steps
        settings = setup.settings
        queries = queries_at(step, settings.steps, settings.queries, settings.query_schedule)
        seeds = self._writer.seeds(queries)
        d = self._find_d()
        self._space.scaling = scaling_by(self._space.scaling_plan, d)
        size = self._step_sizes.size
        estimate = run_estimator(self._make_estimator(seeds), self._losses_of)
        gradients = size.clipped(estimate.gradients)
        rate = learning_rate_at(
            step,
            settings.steps,
            size.learning_rate,
            settings.learning_rate_schedule,
            settings.warm_up,
        )
        if settings.rate_per_query:
            rate *= queries
        observation = Observation.from_step(estimate.mean_loss, gradients, rate, estimate.curvature)
        after = self._step_sizes.record(observation.scaled(_total_gain(self._rule)))
        self._has_just_reverted = after.back_to is not None
        if after.back_to is None:
            self._descent.step(self._writer.append(gradients, rate, d))
            self._d = d
        else:
            self._writer.append_revert(after.back_to)
            log.warning(
                "step %d: the loss rose to %.4g; reverted to the model after step %d, "
                "with a lower learning rate",
                step + 1,
                estimate.mean_loss,
                after.back_to,
            )
            self._rebuild_from_base(step + 1)
        self._steps = step + 1
        return estimate.mean_loss

    def _find_d(self) -> NDArray[np.float32] | None:
        """Return D's diagonal for the next step, recomputed if the plan says so; None without D."""
        space = self._space
        settings = self._setup.settings
        if space.scaling_plan is None or not space.scaling_plan.finds_anew(self.steps):
            return self._d
        batch = self._setup.batch(self.steps, NORMS_ORDER)
        if settings.scaling.norms == "parameters":
            return d_of(parameter_norms(space))
        if settings.scaling.norms == "backward":
            return d_of(gradient_norms(space, self._backward_gradient(batch)))
        shape = (len(space.groups.names), settings.scaling.directions)
        seeds = query_seeds(self._setup.root, NORMS_STREAM, 1, prod(shape), self.steps)
        norms = estimate_gradient_norms(
            space,
            seeds.reshape(shape),
            settings.epsilon,
            lambda seeds: self._losses_of(LossRequest(seeds, settings.epsilon, batch)),
        )
        return d_of(norms)

    def _backward_gradient(self, batch: NDArray[np.int64]) -> Tensor:
        """Return the gradient of all parameters on a batch by backward passes, float32 [d]."""
        _, no_adapters = empty_adapter()
        shift, _ = self._fit_shift(batch)
        losses = (self._summed_loss(no_adapters, some, shift) for some in self._passes(batch))
        return backward_gradient(self._setup.base.network, losses) / len(batch)

    def _make_estimator(self, seeds: NDArray[np.uint64]) -> Estimator:
        """Return the estimator of the next step."""
        setup = self._setup
        step = self.steps
        queries = len(seeds)
        epsilon = setup.settings.epsilon
        differences = setup.settings.differences
        if differences == "one-point":
            latest = self._step_sizes.latest
            # After a revert, the previous loss belongs to a distant model.
            previous = None if latest is None or self._has_just_reverted else latest.loss
            return one_point_estimator(seeds, self._batches(queries), epsilon, previous)
        curvature = self._step_sizes.size.measures_curvature(step, queries, differences)
        by_differences = setup.settings.gradients == "differences"
        if setup.settings.optimizer == "prge":
            batch = setup.batch(step)
            if by_differences:
                return prge_estimator(seeds, batch, epsilon, curvature, differences)
            return exact_estimator(seeds, batch, epsilon, curvature)
        estimator = mezo_estimator if by_differences else mezo_exact_estimator
        return estimator(seeds, self._batches(queries), epsilon, curvature)

    def _batches(self, queries: int) -> NDArray[np.int64]:
        """Return the next step's batch for every direction, int64 [q, B]."""
        return np.stack([self._setup.batch(self.steps, query) for query in range(queries)])

    def evaluate(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate θ on a split."""
        return self._setup.evaluate(self._forward, self._space.evaluate, split)

    def save(self) -> None:
        """Do nothing, because every step is written to disk before it is taken."""

    def keep_best(self) -> None:
        """Do nothing, because every state can be rebuilt from the trajectory."""

    def restore_best(self, step: int) -> None:
        """Rebuild θ from the base model and the first steps of the trajectory."""
        if step != self.steps:
            self._rebuild_from_base(step)
            self._steps = step

    def _rebuild_from_base(self, steps: int) -> None:
        """Load the base model again and replay the first steps of the trajectory."""
        del self._space, self._forward, self._descent
        self._setup.unload()
        self._setup.load()
        self._build_space()
        self._replay(steps)

    def digest(self) -> str:
        """Return the hash of θ and of its tensors' names and shapes, in hexadecimal."""
        return self._space.digest().hex()

    def make_start(self) -> Start | None:
        """Return θ as a federation's start; None if no federation trains the space."""
        space = self._space
        if not isinstance(space, LoRAFASpace):
            return None
        weights = space.values(0, space.size).cpu().numpy()
        layers = self._setup.settings.adapter.layers
        return Start.from_weights(weights, space.adapter.layout, self._setup.base.model_id, layers)

    def emulated_cost(self) -> dict[str, Any]:
        """Return an empty mapping, because only first-order methods use an emulated accelerator."""
        return {}

    def export(self) -> None:
        """Do nothing, because a zeroth-order run leaves its trajectory instead of a model."""

    def close(self) -> None:
        """Close the trajectory and delete the trained blocks, which the trajectory rebuilds."""
        self._writer.close()
        shutil.rmtree(self._blocks, ignore_errors=True)

    def _build_space(self) -> None:
        """Create the space in the loaded model, and its forward engine."""
        setup = self._setup
        self._space = space = make_space(setup, self._blocks)
        examples = len(setup.splits["train"].labels)
        space.scaling_plan = scaling_plan(setup.settings, space, examples)
        parameters = space if isinstance(space, StreamedFullSpace) else None
        self._forward = setup.make_forward(space.adapter, parameters)

    def _replay(self, steps: int | None) -> None:
        """Move the space from its initial state to the state after a number of steps.

        Args:
            steps: number of steps; None for all steps of the trajectory.
        """
        trajectory = read_trajectory(self._path)
        trajectory = replace(trajectory, records=trajectory.records[:steps])
        moments = self._setup.settings.moments
        if moments == "auto":  # if a model does not fit into memory, its moments do not either
            moments = "recomputed" if isinstance(self._space, StreamedFullSpace) else "held"
        self._d = trajectory.d
        self._descent: Descent = trajectory.rebuild(
            self._space, self._rule, self._setup.base.model_id, moments == "held"
        )

    def _losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        if self._setup.decodes:
            return self._losses_of_answers(request)
        prompts, labels = self._setup.rows(request.batch)
        if request.exact and self._setup.settings.gradients == "forward-mode":
            return self._forward_derivatives(request)
        if request.exact:
            return self._exact_derivatives(request, prompts, labels)

        def score(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            with mixed_precision(self._setup.settings):
                return self._forward.scores(perturbations, prompts, self._schedule)

        scores = self._space.evaluate(score, request.seeds, request.epsilon, request.signs)
        return self._setup.objective(scores, labels)

    def _exact_derivatives(
        self, request: LossRequest, prompts: Sequence[Prompt], labels: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return L₀ and the derivatives along q directions by backward passes, float64 [1 + q]."""
        space = self._space
        assert isinstance(space, SharedPassSpace)
        center = Perturbations(space.layout, space.values(0, space.size))
        size = self._schedule.micro_batch
        losses, gradients = self._forward.loss_gradients(
            center, prompts, labels[None], size, self._setup.is_profiled
        )
        z = self._backend.directions(request.seeds, space.size, space.distribution)
        return np.append(losses, directional_derivatives(gradients[0], z))

    def _forward_derivatives(self, request: LossRequest) -> NDArray[np.float64]:
        """Return L₀ and the derivatives along q directions in forward mode, float64 [1 + q]."""
        found = np.zeros(1 + len(request.seeds))
        shift, penalty = self._fit_shift(request.batch)
        for some in self._passes(request.batch):
            summed = partial(self._summed_loss, some=some, shift=shift)
            for query, seed in enumerate(request.seeds, 1):
                loss, derivative = self._space.derivative(summed, int(seed))
                found[query] += derivative
            found[0] += loss
        found /= len(request.batch)
        found[0] += penalty
        return found

    def _fit_shift(self, batch: NDArray[np.int64]) -> tuple[NDArray[np.float64] | float, float]:
        """Return the shift that fits a batch's scores best, float64 [labels], and its penalty.

        Shift and penalty are 0 if the loss is not profiled.
        """
        if not self._setup.is_profiled:
            return 0.0, 0.0
        prompts, labels = self._setup.rows(batch)
        (scores,) = self._space.evaluate(
            lambda center: self._forward.scores(center, prompts, self._schedule)
        )
        shifts, penalties = shifts_of_rows(scores, labels[None])
        return shifts[0], float(penalties[0])

    def _passes(self, batch: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the parts of a batch, each of which takes one pass."""
        size = self._schedule.micro_batch or len(batch)
        return [batch[start : start + size] for start in range(0, len(batch), size)]

    def _summed_loss(
        self,
        adapters: PerturbedAdapters,
        some: NDArray[np.int64],
        shift: NDArray[np.float64] | float,
    ) -> Tensor:
        """Return the loss summed over some training examples, with its autograd graph.

        Args:
            adapters: the adapters under which the loss is computed.
            some: int64 [n], indices of the examples.
            shift: addend of the scores, float64 [labels]; 0 for no shift.
        """
        (prompts, labels), forward = self._setup.rows(some), self._forward
        assert isinstance(forward, ResidentForward)
        scores = forward.score_pass(adapters, prompts)[0]
        if self._setup.is_profiled:
            scores = scores + torch.as_tensor(shift, dtype=scores.dtype, device=scores.device)
        return summed_loss(scores, labels, self._setup.goal)

    def _losses_of_answers(self, request: LossRequest) -> NDArray[np.float64]:
        task = self._setup.task
        train = self._setup.splits["train"]
        forward = self._forward
        assert isinstance(task, GenerationTask)
        assert isinstance(forward, ResidentForward)
        prompts = [train.open_prompts[index] for index in request.batch]
        accepted = [train.examples[index].answers for index in request.batch]

        def minus_metric(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            size = self._schedule.micro_batch
            return answer_losses(forward, task, perturbations, prompts, accepted, size)

        losses = self._space.evaluate(minus_metric, request.seeds, request.epsilon, request.signs)
        return losses.astype(np.float64)


def _total_gain(rule: UpdateRule) -> float:
    """Return the total factor with which a gradient moves θ, over this and later steps.

    With momentum, later steps apply the gradient again.
    """
    return 1 / (1 - rule.beta) if isinstance(rule, Momentum) else 1.0
