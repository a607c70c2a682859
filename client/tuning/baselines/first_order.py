"""Adam on true gradients, of LoRA-FA's B or of all parameters.

Kingma & Ba, "Adam: a method for stochastic optimization" (2014), as torch has it. What is needed to
go on lies in two files, each written whole: the trained tensors with both moments, and the trained
tensors of the best step.
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
from client.forward.body import PerturbedBody
from client.forward.resident import ResidentForward
from client.spaces.space import empty_adapter
from client.tuning.tuning_setup import Figures, Split, TuningSetup
from shared.errors import TrainingError
from shared.files import write_durably
from shared.model.lora_fa import Perturbations, inject

CHECKPOINT_FILE, BEST_FILE = "checkpoint.safetensors", "best.safetensors"
ADAPTER_NAME = "adapter"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class FirstOrder:
    """Trains by Adam, on batches that are a function of the seed and the step.

    Args:
        bench: its model is trained, or gets adapters.
        folder: of the run; the checkpoint in it is continued.
        settings_hash: of everything that decides what the run does, 32 bytes.

    Raises:
        SamaraError: if adapter settings and model do not go together, or a checkpoint is damaged
            or belongs to something else.
    """

    note = ""

    def __init__(self, bench: TuningSetup, folder: Path, settings_hash: bytes) -> None:
        self._bench, self._hash = bench, settings_hash.hex()
        self._checkpoint, self._best = folder / CHECKPOINT_FILE, folder / BEST_FILE
        base = bench.base
        if bench.settings.space == "full":
            adapter, self._adapters = empty_adapter()
            base.network.requires_grad_(True)
            self._trained: dict[str, Tensor] = dict(base.network.named_parameters())
        else:
            adapter = inject(base, bench.settings.adapter, bench.scorer.labels)
            center = torch.zeros(adapter.layout.size, device=base.network.device)
            self._adapters = Perturbations(adapter.layout, center.requires_grad_())
            self._trained = {ADAPTER_NAME: center}
        body = PerturbedBody(base, adapter.first_block)
        self._forward = ResidentForward(adapter, bench.scorer, body)
        self._optimizer = torch.optim.Adam(list(self._trained.values()), bench.settings.rate)
        self._steps = 0
        if self._checkpoint.exists():
            self._continue()

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._steps

    def step(self) -> float:
        """One step of Adam; returns the batch's loss.

        Raises:
            TrainingError: if the loss is not finite.
        """
        settings, train = self._bench.settings, self._bench.splits["train"]
        batch = self._bench.batch(self._steps)
        rate = learning_rate_at(
            self._steps, settings.steps, settings.rate, settings.learning_rate_schedule
        )
        self._optimizer.zero_grad()
        whole = 0.0
        size = settings.micro_batch or len(batch)
        for start in range(0, len(batch), size):
            some = batch[start : start + size]
            scores = self._forward.score_pass(self._adapters, [train.prompts[i] for i in some])[0]
            labels = torch.from_numpy(train.labels[some]).to(scores.device)
            loss = self._loss(scores, labels) / len(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            whole += loss.item()
        if not np.isfinite(whole):
            raise TrainingError(
                f"the loss of step {self._steps + 1} is not finite; lower learning-rate, or check "
                "the model's weights"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._steps += 1
        return whole

    def figures(self, split: Split) -> Figures:
        """How good it is now."""
        return self._bench.figures(self._forward, lambda run: run(self._adapters), split)

    def save(self) -> None:
        """Write what the next step depends on."""
        moments = {
            f"{moment}.{name}": state[moment]
            for name, tensor in self._trained.items()
            if (state := self._optimizer.state.get(tensor))
            for moment in _MOMENTS
        }
        self._write(self._checkpoint, self._values() | moments)

    def keep(self) -> None:
        """Write what is trained, unless it is there already."""
        if not self._best.exists() or self._step_of(self._best) != self._steps:
            self._write(self._best, self._values())

    def recall(self, step: int) -> None:
        """Read the kept tensors back.

        Raises:
            TrainingError: if what was kept is of another step.
        """
        if step != self._steps:
            if self._step_of(self._best) != step:
                raise TrainingError(
                    f"{self._best}: it is not what step {step} left; "
                    "begin the run in another folder"
                )
            self._take(self._read(self._best))
            self._steps = step

    def digest(self) -> str:
        """Of names, shapes and values."""
        whole = hashlib.sha256()
        for name, tensor in self._values().items():
            whole.update(f"{name} {tuple(tensor.shape)}".encode())
            whole.update(tensor.cpu().numpy().astype("<f4").tobytes())
        return whole.hexdigest()

    def close(self) -> None:
        """Nothing is open."""

    def _loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Sum over rows: cross-entropy, or minus the log-likelihood of what is right."""
        if self._bench.goal == "likelihood":
            return -scores.gather(1, labels[:, None]).sum()
        return nn.functional.cross_entropy(scores, labels, reduction="sum")

    def _values(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self._trained.items()}

    def _continue(self) -> None:
        found = self._read(self._checkpoint)
        self._steps = self._step_of(self._checkpoint)
        self._take(found)
        for name, tensor in self._trained.items():
            if f"{_MOMENTS[0]}.{name}" in found:
                moments = {key: found[f"{key}.{name}"].to(tensor.device) for key in _MOMENTS}
                self._optimizer.state[tensor] = {"step": torch.tensor(float(self._steps))} | moments

    def _take(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self._trained.items():
                tensor.copy_(values[name])

    def _write(self, file: Path, tensors: dict[str, Tensor]) -> None:
        facts = {"step": str(self._steps), "settings": self._hash}
        try:
            write_durably(file, save({k: v.contiguous() for k, v in tensors.items()}, facts))
        except OSError as error:
            raise TrainingError(f"{file}: cannot be written: {error.strerror}") from error

    def _step_of(self, file: Path) -> int:
        """The step after which a file was written.

        Raises:
            TrainingError: if the file is damaged, or belongs to other settings.
        """
        try:
            with safe_open(file, "pt") as stored:
                facts = stored.metadata() or {}
            if facts.get("settings") != self._hash:
                raise TrainingError(f"{file}: it belongs to other settings; use another folder")
            return int(facts["step"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise self._damaged(file, error) from error

    def _read(self, file: Path) -> dict[str, Tensor]:
        try:
            with safe_open(file, "pt") as stored:
                found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise self._damaged(file, error) from error
        for name, tensor in self._trained.items():
            if name not in found or found[name].shape != tensor.shape:
                raise self._damaged(file, f"no tensor {name} {tuple(tensor.shape)}")
        return found

    @staticmethod
    def _damaged(file: Path, error: object) -> TrainingError:
        return TrainingError(f"{file}: damaged: {error}; begin the run in another folder")
