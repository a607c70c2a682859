"""Training by Adam or SGD with backward passes, with the optimizer on the device or on the host.

All first-order methods share one loop, so that they see the same batches in the same passes:

- Adam or SGD on a space, such as LoRA's A and B or all parameters
- Zero-Offload, whose Adam runs on the host
- LSP-Offload, whose Adam runs on the host in a subspace of every linear layer

A run is continued from two files, each written atomically: the trained tensors with the state of
the optimizer, and the trained tensors of the best step.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.estimators.mezo import learning_rate_at
from samara.client.forward.activation_checkpointing import checkpointing
from samara.client.forward.readout import ReadoutForward
from samara.client.offload.accelerator import Accelerator, EmulatedAccelerator
from samara.client.offload.emulated_cost import EmulatedCost
from samara.client.offload.layer_update import (
    ImmediateSchedule,
    LayerUpdate,
    SubspaceSettings,
    UpdateSchedule,
)
from samara.client.offload.linear_layers import linear_weights
from samara.client.offload.offloaded_adam import OffloadedAdam
from samara.client.offload.overlapped_schedule import OverlappedSchedule
from samara.client.spaces.space import FlatSpace, ScoreFunction
from samara.client.tuning.baselines.offload_setup import (
    computes_again,
    make_accelerator,
    make_schedule,
)
from samara.client.tuning.baselines.resident_optimizer import ResidentOptimizer
from samara.client.tuning.methods import LSP_GAMMA
from samara.client.tuning.model_export import export_model
from samara.client.tuning.projector_log import ProjectorLog
from samara.client.tuning.run_space import make_space
from samara.client.tuning.tensor_file import TensorFile, digest_of
from samara.client.tuning.training_loss import mixed_precision, summed_loss
from samara.client.tuning.tuning_setup import EvaluationResult, TaskSplit, TuningSetup
from samara.shared.errors import TrainingError
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import empty_adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.protocol.start import Start

CHECKPOINT_FILE = "checkpoint.safetensors"
BEST_FILE = "best.safetensors"
MODEL_FOLDER = "model"
ADAPTER_NAME = "adapter"
_CHECK_ORDER = 1
"""Number of the batch order for checks of projectors. Steps use order 0."""


class GradientOptimizer(Protocol):
    """Protocol of optimizers that receive gradients from a loop of backward passes."""

    def begin_pass(self, learning_rate: float | None) -> None:
        """Prepare for a backward pass.

        Args:
            learning_rate: η in the last pass of a step, otherwise None.
        """

    def finish_step(self, learning_rate: float) -> None:
        """Complete the step; afterwards the weights are updated and no gradients are stored."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer's state, by their names in a checkpoint."""

    def restore(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Continue with the tensors of a checkpoint.

        Raises:
            ValueError: if a tensor is missing, or has another shape or dtype.
        """

    def hold(self, accelerator: Accelerator) -> None:
        """Register the state's tensors in the emulated memories that hold them."""


class FirstOrder:
    """A method that trains by Adam or SGD, on batches determined by seed and step.

    Args:
        setup: setup whose model is trained or adapted.
        folder: folder of the run; training continues from a checkpoint in it.
        settings_hash: hash of all inputs that determine the run's results, 32 bytes.

    Raises:
        SamaraError: if the adapter settings do not fit the model, or a checkpoint is damaged or
            belongs to another run.
    """

    warning = ""

    def __init__(self, setup: TuningSetup, folder: Path, settings_hash: bytes) -> None:
        self._setup = setup
        self._folder = folder
        self._checkpoint = TensorFile(folder / CHECKPOINT_FILE, settings_hash.hex())
        self._best = TensorFile(folder / BEST_FILE, settings_hash.hex())
        base = setup.base
        settings = setup.settings
        self._at_weights: Callable[[], AbstractContextManager[PerturbedAdapters]]
        if settings.space in ("full", "linear"):
            adapter, no_adapters = empty_adapter()
            self._trained = _own_weights(base, settings.space)
            self._at_weights = lambda: nullcontext(no_adapters)
        else:
            space = make_space(setup)
            assert isinstance(space, FlatSpace)
            adapter = space.adapter
            theta = space.values(0, space.size).clone().requires_grad_()
            self._trained = {name_of_theta(space.kind): theta}
            self._at_weights = lambda: space.computing_with(theta)
        self._adapter = adapter
        self._forward = setup.make_forward(adapter)
        self._accelerator = accelerator = make_accelerator(settings, base)
        self._cost = (
            EmulatedCost(accelerator) if isinstance(accelerator, EmulatedAccelerator) else None
        )
        self._schedule: UpdateSchedule = ImmediateSchedule()
        self._optimizer = self._make_optimizer()
        self._steps = 0
        try:
            if self._checkpoint.exists:
                self._continue()
            self._optimizer.hold(accelerator)
        except BaseException:
            self.close()
            raise

    def _make_optimizer(self) -> GradientOptimizer:
        settings = self._setup.settings
        self._checks: ProjectorLog | None = None
        if settings.optimizer not in ("zero-offload", "lsp"):
            kind = torch.optim.SGD if settings.optimizer == "fo-sgd" else torch.optim.Adam
            return ResidentOptimizer(self._trained, settings.rate, kind)
        subspace = _subspace_settings(self._setup) if settings.optimizer == "lsp" else None
        layers = [
            LayerUpdate(name, weight)
            if subspace is None
            else LayerUpdate.in_subspace(name, weight, subspace)
            for name, weight in self._trained.items()
            if isinstance(weight, nn.Parameter)
        ]
        self._schedule = make_schedule(settings, self._setup.base, layers, self._accelerator)
        optimizer = OffloadedAdam(layers, self._schedule, subspace)
        if subspace is not None:
            self._checks = ProjectorLog(self._folder, optimizer, settings.lsp.check_frequency)
        return optimizer

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return self._steps

    def step(self) -> float:
        """Take a step and return the batch's loss.

        Raises:
            TrainingError: if the loss is not finite.
        """
        with self._accelerator.computing("forward", 0):
            return self._take_step()

    def _take_step(self) -> float:
        settings = self._setup.settings
        rate = learning_rate_at(
            self._steps,
            settings.steps,
            settings.rate,
            settings.learning_rate_schedule,
            settings.warm_up,
        )
        if self._checks is not None and self._checks.is_due(self._steps):
            self._schedule.finish()
            self._check_projectors(self._checks)
        batch = self._setup.batch(self._steps)
        size = settings.micro_batch or len(batch)
        if isinstance(self._forward, ReadoutForward):
            size = len(batch)  # representations are already computed
        total = 0.0
        for start in range(0, len(batch), size):
            loss = self._batch_loss(batch[start : start + size], len(batch))
            total += loss.item()
            if not np.isfinite(total):
                raise TrainingError(
                    f"the loss of step {self._steps + 1} is not finite; lower learning-rate, or "
                    "check the model's weights"
                )
            self._optimizer.begin_pass(rate if start + size >= len(batch) else None)
            self._backward(loss)
        self._accelerator.switch("update", 0)
        self._optimizer.finish_step(rate)
        self._steps += 1
        return total

    def _check_projectors(self, checks: ProjectorLog) -> None:
        """Check all projectors on the gradient of a sample that is independent of all batches."""
        settings = self._setup.settings
        wanted = settings.lsp.check_examples
        size = settings.micro_batch
        sample = self._setup.batch(self._steps, _CHECK_ORDER, wanted)
        if not wanted:
            sample = sample[: size or None]
        starts = range(0, len(sample), size or len(sample))
        with checks.checking(self._steps, len(starts)):
            for start in starts:
                part = sample[start : start + starts.step]
                self._backward(self._batch_loss(part, len(sample)), "check")
                self._accelerator.switch("forward", 0)

    def evaluate(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate the model's current state on a split."""
        self._pause()
        with self._accelerator.computing("forward", 0):
            result = self._setup.evaluate(self._forward, self._scored, split)
        if self._cost:
            self._cost.skip()
        return result

    def _scored(self, score: ScoreFunction) -> NDArray[np.float32]:
        with self._at_weights() as adapters:
            return score(adapters)

    def save(self) -> None:
        """Write the checkpoint: trained tensors and the state of the optimizer."""
        self._pause()
        self._checkpoint.write(self._values() | self._optimizer.tensors(), self._steps)

    def keep_best(self) -> None:
        """Write the trained tensors to the file of the best state, unless it already has them."""
        if not self._best.exists or self._best.step() != self._steps:
            self._best.write(self._values(), self._steps)

    def restore_best(self, step: int) -> None:
        """Read the trained tensors of the best state.

        Raises:
            TrainingError: if the file has the tensors of another step.
        """
        if step != self._steps:
            if self._best.step() != step:
                raise TrainingError(
                    f"{self._folder / BEST_FILE}: does not hold the tensors after step {step}; "
                    "begin the run in another folder"
                )
            self._assign(self._best.read(self._trained))
            self._steps = step

    def digest(self) -> str:
        """Return the hash of the trained tensors' names, shapes and values, in hexadecimal."""
        return digest_of(self._values())

    def make_start(self) -> Start | None:
        """Return the current weights as a federation's start, or None if A is trained too."""
        if self._setup.settings.space != "lora-fa":
            return None
        weights = self._trained[ADAPTER_NAME].detach().cpu().numpy()
        layers = self._setup.settings.adapter.layers
        layout = self._adapter.layout
        return Start.from_weights(weights, layout, self._setup.base.model_id, layers)

    def export(self) -> None:
        """Write the current model, if the method trains the model's own weights."""
        settings = self._setup.settings
        if settings.space in ("full", "linear") and settings.classifier == "label-words":
            self._schedule.finish()
            export_model(self._setup.base, self._folder / MODEL_FOLDER)

    def close(self) -> None:
        """Stop the schedule's threads."""
        if isinstance(self._schedule, OverlappedSchedule):
            self._schedule.close()

    def emulated_cost(self) -> dict[str, Any]:
        """Return the seconds and bytes of an emulated accelerator; empty without one."""
        self._pause()
        return self._cost.as_json() if self._cost else {}

    def _pause(self) -> None:
        """Complete all updates, and stop the emulated time until the next step."""
        self._schedule.finish()
        if self._cost:
            self._cost.count()

    def _batch_loss(self, batch: NDArray[np.int64], count: int) -> Tensor:
        """Return the summed loss of a batch divided by `count`, with its autograd graph."""
        prompts, labels = self._setup.rows(batch)
        blocks = list(self._setup.base.blocks) if computes_again(self._setup.settings) else []
        with (
            self._at_weights() as adapters,
            checkpointing(blocks, self._recomputing),
            mixed_precision(self._setup.settings),
        ):
            scores = self._forward.score_pass(adapters, prompts)[0]
        return summed_loss(scores, labels, self._setup.goal) / count

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Apply the weights and θ of a block's first forward pass while the block is recomputed."""
        with self._at_weights() as adapters, self._adapter.using(adapters):
            yield

    def _backward(self, loss: Tensor, work: str = "backward") -> None:
        self._accelerator.switch(work, 0)
        loss.backward()  # type: ignore[no-untyped-call]

    def _values(self) -> dict[str, Tensor]:
        self._schedule.finish()
        return {name: tensor.detach() for name, tensor in self._trained.items()}

    def _continue(self) -> None:
        stored = self._checkpoint.read(self._trained)
        self._steps = self._checkpoint.step()
        self._assign(stored)
        try:
            self._optimizer.restore(stored, self._steps)
        except ValueError as error:
            raise self._checkpoint.damaged(error) from error

    def _assign(self, values: Mapping[str, Tensor]) -> None:
        self._schedule.finish()
        with torch.no_grad():
            for name, tensor in self._trained.items():
                tensor.copy_(values[name])


def name_of_theta(kind: str) -> str:
    """Return the name of a space's θ in a checkpoint."""
    return ADAPTER_NAME if kind == "lora-fa" else kind


def _own_weights(base: BaseModel, space: str) -> dict[str, Tensor]:
    """Return the model parameters that a space trains in place, and enable their gradients."""
    trained: dict[str, Tensor] = dict(
        base.network.named_parameters() if space == "full" else linear_weights(base.network)
    )
    for tensor in trained.values():
        tensor.requires_grad_(True)
    return trained


def _subspace_settings(setup: TuningSetup) -> SubspaceSettings:
    lsp = setup.settings.lsp
    return SubspaceSettings(
        lsp.subspace_size or max(1, setup.base.features // 8),
        lsp.nonzeros,
        lsp.threshold,
        LSP_GAMMA,
        lsp.learning_steps,
        setup.settings.seed,
    )
