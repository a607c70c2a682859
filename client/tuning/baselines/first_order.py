"""Adam on true gradients, of LoRA-FA's B or of all parameters.

Kingma & Ba, "Adam: a method for stochastic optimization" (2014), as torch implements it. A run is
continued from two files, each written as a whole: the trained tensors with both moments, and the
trained tensors of the best step.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from client.estimators.mezo import learning_rate_at
from client.forward.readout import ReadoutForward
from client.tuning.tuning_setup import EvaluationResult, TaskSplit, TuningSetup
from shared.errors import TrainingError
from shared.files import write_durably
from shared.model.lora_fa import Perturbations, empty_adapter, inject
from shared.start import Start

CHECKPOINT_FILE, BEST_FILE = "checkpoint.safetensors", "best.safetensors"
ADAPTER_NAME = "adapter"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class FirstOrder:
    """A method that trains by Adam, on batches that are a function of seed and step.

    Args:
        setup: setup whose model is trained, or adapted.
        folder: folder of the run; a checkpoint in it is continued.
        settings_hash: hash of everything that decides what the run computes, 32 bytes.

    Raises:
        SamaraError: if the adapter settings do not fit the model, or a checkpoint is damaged or
            belongs to another run.
    """

    warning = ""

    def __init__(self, setup: TuningSetup, folder: Path, settings_hash: bytes) -> None:
        self._setup, self._hash = setup, settings_hash.hex()
        self._checkpoint, self._best = folder / CHECKPOINT_FILE, folder / BEST_FILE
        base = setup.base
        if setup.settings.space == "full":
            adapter, self._adapters = empty_adapter()
            base.network.requires_grad_(True)
            self._trained: dict[str, Tensor] = dict(base.network.named_parameters())
        else:
            adapter = inject(base, setup.settings.adapter, setup.scorer.labels)
            center = torch.zeros(adapter.layout.element_count, device=base.network.device)
            self._adapters = Perturbations(adapter.layout, center.requires_grad_())
            self._trained = {ADAPTER_NAME: center}
        self._forward = setup.make_forward(adapter)
        self._optimizer = torch.optim.Adam(list(self._trained.values()), setup.settings.rate)
        self._steps = 0
        if self._checkpoint.exists():
            self._continue()

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self._steps

    def step(self) -> float:
        """Take a step of Adam and return the batch's loss.

        Raises:
            TrainingError: if the loss is not finite.
        """
        settings, train = self._setup.settings, self._setup.splits["train"]
        batch = self._setup.batch(self._steps)
        rate = learning_rate_at(
            self._steps, settings.steps, settings.rate, settings.learning_rate_schedule
        )
        self._optimizer.zero_grad()
        total = 0.0
        size = settings.micro_batch or len(batch)
        if isinstance(self._forward, ReadoutForward):
            size = len(batch)  # the model has run already
        for start in range(0, len(batch), size):
            some = batch[start : start + size]
            scores = self._forward.score_pass(self._adapters, [train.prompts[i] for i in some])[0]
            labels = torch.from_numpy(train.labels[some]).to(scores.device)
            loss = self._loss(scores, labels) / len(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        if not np.isfinite(total):
            raise TrainingError(
                f"the loss of step {self._steps + 1} is not finite; lower learning-rate, or check "
                "the model's weights"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._steps += 1
        return total

    def evaluate(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate the model's current state on a split."""
        return self._setup.evaluate(self._forward, lambda score: score(self._adapters), split)

    def save(self) -> None:
        """Write the checkpoint: trained tensors and moments."""
        moments = {
            f"{moment}.{name}": state[moment]
            for name, tensor in self._trained.items()
            if (state := self._optimizer.state.get(tensor))
            for moment in _MOMENTS
        }
        self._write(self._checkpoint, self._values() | moments)

    def keep_best(self) -> None:
        """Write the trained tensors as the best, unless they have been written already."""
        if not self._best.exists() or self._step_of(self._best) != self._steps:
            self._write(self._best, self._values())

    def restore_best(self, step: int) -> None:
        """Read the best tensors back.

        Raises:
            TrainingError: if the best tensors are those of another step.
        """
        if step != self._steps:
            if self._step_of(self._best) != step:
                raise TrainingError(
                    f"{self._best}: it does not hold the tensors after step {step}; "
                    "begin the run in another folder"
                )
            self._assign(self._read(self._best))
            self._steps = step

    def digest(self) -> str:
        """Return the hash of names, shapes and values, in hexadecimal."""
        whole = hashlib.sha256()
        for name, tensor in self._values().items():
            whole.update(f"{name} {tuple(tensor.shape)}".encode())
            whole.update(tensor.cpu().numpy().astype("<f4").tobytes())
        return whole.hexdigest()

    def make_start(self) -> Start | None:
        """Return the current weights as the start of a federation; None in the space full."""
        if ADAPTER_NAME not in self._trained:
            return None
        weights = self._trained[ADAPTER_NAME].detach().cpu().numpy()
        layers = self._setup.settings.adapter.layers
        return Start.from_weights(weights, self._adapters.layout, self._setup.base.model_id, layers)

    def close(self) -> None:
        """Do nothing, since no file is open."""

    def _loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over rows of cross-entropy, or minus the answers' log-likelihoods."""
        if self._setup.goal == "likelihood":
            return -scores.gather(1, labels[:, None]).sum()
        return nn.functional.cross_entropy(scores, labels, reduction="sum")

    def _values(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self._trained.items()}

    def _continue(self) -> None:
        stored = self._read(self._checkpoint)
        self._steps = self._step_of(self._checkpoint)
        self._assign(stored)
        for name, tensor in self._trained.items():
            if f"{_MOMENTS[0]}.{name}" in stored:
                moments = {key: stored[f"{key}.{name}"].to(tensor.device) for key in _MOMENTS}
                self._optimizer.state[tensor] = {"step": torch.tensor(float(self._steps))} | moments

    def _assign(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self._trained.items():
                tensor.copy_(values[name])

    def _write(self, file: Path, tensors: dict[str, Tensor]) -> None:
        metadata = {"step": str(self._steps), "settings": self._hash}
        try:
            write_durably(file, save({k: v.contiguous() for k, v in tensors.items()}, metadata))
        except OSError as error:
            raise TrainingError(f"{file}: cannot be written: {error.strerror}") from error

    def _step_of(self, file: Path) -> int:
        """Return the step after which a file was written.

        Raises:
            TrainingError: if the file is damaged, or belongs to other settings.
        """
        try:
            with safe_open(file, "pt") as stored:
                metadata = stored.metadata() or {}
            if metadata.get("settings") != self._hash:
                raise TrainingError(f"{file}: it belongs to other settings; use another folder")
            return int(metadata["step"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise self._damaged(file, error) from error

    def _read(self, file: Path) -> dict[str, Tensor]:
        try:
            with safe_open(file, "pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise self._damaged(file, error) from error
        for name, tensor in self._trained.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise self._damaged(file, f"no tensor {name} {tuple(tensor.shape)}")
        return tensors

    @staticmethod
    def _damaged(file: Path, error: object) -> TrainingError:
        return TrainingError(f"{file}: damaged: {error}; begin the run in another folder")
