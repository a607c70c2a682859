"""The last projections of a model with adapters, for many short runs side by side.

Adapters on the last block's MLP leave everything below them as it is. What reaches them is computed
once per example; a step then costs the MLP alone, of a causal LM at the one position that is read.
All runs of a group try the same directions on the same examples, so the products with these are
made once for all of them. Losses are compared with those of the forward engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.tuning.settings import TuneSettings
from samara.client.tuning.tuning_setup import TuningSetup
from samara.shared import layout as layouts
from samara.shared.directions import DIRECTION_BITS
from samara.shared.model.frozen_a import frozen_matrices
from samara.shared.model.layer_selection import features
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter, LoRAFALinear, inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import (
    COSINE_TEMPERATURE,
    CausalScorer,
    EncoderScorer,
    Prompt,
    Scorer,
)
from samara.shared.sections import AdapterSettings

AT_ONCE = 16
TOLERANCE = 2e-4
"""The tolerance between losses here and those of the forward engine, in nats."""


class Top(ABC):
    """Examples of a task as they reach the adapters, and what comes after.

    Attributes:
        layout: of the adapters.
        splits: rows of the training and the held-out examples.
    """

    def __init__(self, settings: TuneSettings) -> None:
        bench = TuningSetup(settings)
        adapter = self._inject(bench.base, settings.adapter)
        self.layout = adapter.layout
        train, held_out = bench.splits["train"], bench.splits["test"]
        prompts = [*train.prompts, *held_out.prompts]
        self._labels = np.concatenate([train.labels, held_out.labels])
        self.splits = np.split(np.arange(len(prompts)), [len(train.labels)])
        self._scale = settings.adapter.alpha / settings.adapter.rank
        with torch.inference_mode():
            self._keep(bench.base, bench.scorer, prompts)
            self._check(bench, adapter, prompts)

    def losses(
        self,
        thetas: Tensor,
        rows: NDArray[np.int64],
        z: NDArray[np.int16] | None = None,
        epsilon: float = 0.0,
    ) -> NDArray[np.float64]:
        """Cross-entropy of every example at every point of every run.

        Args:
            thetas: float32 [R, d], where the runs stand.
            rows: int64 [n], which examples.
            z: int16 [q, d], directions; without them, at the centres alone.
            epsilon: ε.

        Returns:
            float64 [R, P, n], of + all directions first, then −; P = 1 at the centres.
        """
        log_likelihoods = self.scores(thetas, rows, z, epsilon).double().log_softmax(-1)
        labels = self._labels[rows]
        return -log_likelihoods[..., torch.arange(len(rows)), torch.from_numpy(labels)].numpy()

    def scores(
        self,
        thetas: Tensor,
        rows: NDArray[np.int64],
        z: NDArray[np.int16] | None = None,
        epsilon: float = 0.0,
    ) -> Tensor:
        """Scores of all labels at the same points, float32 [R, P, n, labels]."""
        with torch.inference_mode():
            steps = None if z is None else torch.from_numpy(z).float() * 2.0**-DIRECTION_BITS
            return self._scores(thetas, torch.from_numpy(rows), steps, epsilon)

    def decides(self, thetas: Tensor, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which examples every run classifies correctly, bool [R, n]."""
        decided = self.scores(thetas, rows).argmax(-1)[:, 0].numpy()
        right: NDArray[np.bool_] = decided == self._labels[rows]
        return right

    def _check(self, bench: TuningSetup, adapter: Adapter, prompts: Sequence[Prompt]) -> None:
        """Compare some losses with those of the forward engine.

        Raises:
            RuntimeError: if they differ by more than rounding.
        """
        generator = np.random.default_rng(0)
        theta = generator.normal(0, 0.1, self.layout.size).astype(np.float32)
        rows = generator.integers(0, len(prompts), 8)
        forward = ResidentForward(adapter, bench.scorer, PerturbedBody(bench.base, 0))
        perturbations = Perturbations.from_arrays(self.layout, theta)
        scores = torch.from_numpy(forward.scores(perturbations, [prompts[row] for row in rows])[0])
        likelihoods = scores.double().log_softmax(-1).numpy()
        expected = -likelihoods[np.arange(len(rows)), self._labels[rows]]
        found = self.losses(torch.from_numpy(theta)[None], rows)[0, 0]
        if not np.abs(found - expected).max() < TOLERANCE:
            raise RuntimeError(f"losses {found} here, {expected} of the engine")

    @abstractmethod
    def _inject(self, base: BaseModel, settings: AdapterSettings) -> Adapter:
        """Put the adapters into the model."""

    @abstractmethod
    def _keep(self, base: BaseModel, scorer: Scorer, prompts: Sequence[Prompt]) -> None:
        """Run what is below the adapters over all examples."""

    @abstractmethod
    def _scores(self, thetas: Tensor, rows: Tensor, z: Tensor | None, epsilon: float) -> Tensor:
        """float32 [R, P, n, labels]."""

    def _spread(
        self, name: str, x: Tensor, thetas: Tensor, z: Tensor | None, epsilon: float
    ) -> Tensor:
        """Return a layer's output, [R, P, n, T, out], for inputs x = A·h [n, T, rank]."""
        place, rows = self.layout.tensor_slice(name)
        rank = self.layout.rank

        def product(flat: Tensor) -> Tensor:
            b = flat[:, place].reshape(len(flat) * rows, rank)
            made = (x.reshape(-1, rank) @ b.T).view(*x.shape[:-1], len(flat), rows)
            return self._scale * made.movedim(-2, 0)

        centres = product(thetas)[:, None]
        if z is None:
            return centres
        sides = epsilon * product(z)
        return centres + torch.cat([sides, -sides])


class CausalTop(Top):
    """Gate and up projections of the last MLP, at the position before the label word."""

    def _inject(self, base: BaseModel, settings: AdapterSettings) -> Adapter:
        return inject(base, settings, 0)

    def _keep(self, base: BaseModel, scorer: Scorer, prompts: Sequence[Prompt]) -> None:
        assert isinstance(scorer, CausalScorer)
        tokens = scorer.label_tokens
        if any(len(word) > 1 for word in tokens):
            raise RuntimeError("a label word has several tokens; take other words")
        self._words: Tensor = base.network.get_output_embeddings().weight[
            [word[0] for word in tokens]
        ]
        layers = _adapted(base)
        self._down: nn.Module = base.blocks[-1].mlp.down_proj  # type: ignore[assignment, union-attr]
        self._norm: nn.Module = base.body.norm  # type: ignore[assignment]
        inputs = _inputs(base, prompts, layers[0], self._down, self._norm)
        last = [[states[-1] for states in of_row] for of_row in inputs]
        x, inner, before_norm = (torch.stack(parts) for parts in zip(*last, strict=True))
        self._into = [(layer.name, x @ layer.a.T, layer.base(x)) for layer in layers]
        self._rest = before_norm - self._down(inner)

    def _scores(self, thetas: Tensor, rows: Tensor, z: Tensor | None, epsilon: float) -> Tensor:
        made = [
            frozen[rows] + self._spread(name, a[rows][:, None], thetas, z, epsilon)[..., 0, :]
            for name, a, frozen in self._into
        ]
        inner = nn.functional.silu(made[0]) * made[1]
        hidden: Tensor = self._norm(self._rest[rows] + self._down(inner))
        return hidden @ self._words.T


class EncoderTop(Top):
    """The output projection of the last MLP, at all tokens, and their mean."""

    def _inject(self, base: BaseModel, settings: AdapterSettings) -> Adapter:
        parent: Any = base.blocks[-1].output
        name = next(n for n, module in base.body.named_modules() if module is parent.dense)
        tensor = layouts.Tensor(
            name, features(parent.dense)[1], settings.rank, layouts.ADAPTER_GROUP
        )
        layout = layouts.Layout(
            (tensor,), settings.rank, settings.alpha, settings.seed, settings.distribution
        )
        adapter = Adapter(layout, len(base.blocks) - 1)
        (a,) = frozen_matrices(layout, [features(parent.dense)[0]])
        parent.dense = LoRAFALinear(parent.dense, torch.from_numpy(a), name, adapter)
        return adapter

    def _keep(self, base: BaseModel, scorer: Scorer, prompts: Sequence[Prompt]) -> None:
        assert isinstance(scorer, EncoderScorer)
        self._prompts = scorer.label_embeddings
        (layer,) = _adapted(base)
        self._name = layer.name
        self._norm: nn.Module = base.blocks[-1].output.LayerNorm  # type: ignore[assignment, union-attr]
        inputs = _inputs(base, prompts, layer, self._norm)
        self._lengths = torch.tensor([len(h) for h, _ in inputs])
        pad = nn.utils.rnn.pad_sequence
        self._projected = pad([h @ layer.a.T for h, _ in inputs], batch_first=True)
        self._rest = pad([before for _, before in inputs], batch_first=True)

    def _scores(self, thetas: Tensor, rows: Tensor, z: Tensor | None, epsilon: float) -> Tensor:
        lengths = self._lengths[rows]
        longest = int(lengths.max())
        a = self._projected[rows, :longest]
        added = self._spread(self._name, a, thetas, z, epsilon)
        hidden = self._norm(self._rest[rows, :longest] + added)
        weights = (torch.arange(longest) < lengths[:, None]).float() / lengths[:, None]
        pooled = torch.einsum("rpnth,nt->rpnh", hidden, weights)
        return nn.functional.normalize(pooled, dim=-1) @ self._prompts.T / COSINE_TEMPERATURE


def _inputs(base: BaseModel, prompts: Sequence[Prompt], *modules: nn.Module) -> list[list[Tensor]]:
    """The inputs of some modules for the sequence of every prompt, [S, features] each."""
    found: list[list[Tensor]] = []
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row].sequences[0]))
    body = PerturbedBody(base, 0)
    for start in range(0, len(order), AT_ONCE):
        sequences = [prompts[row].sequences[0] for row in order[start : start + AT_ONCE]]
        seen: dict[int, Tensor] = {}
        handles = [
            module.register_forward_pre_hook(_into(seen, place))
            for place, module in enumerate(modules)
        ]
        body(sequences)
        for handle in handles:
            handle.remove()
        found += [
            [seen[place][index, : len(sequence)].clone() for place in range(len(modules))]
            for index, sequence in enumerate(sequences)
        ]
    return [found[place] for place in np.argsort(order)]


def _adapted(base: BaseModel) -> list[LoRAFALinear]:
    return [m for m in base.blocks[-1].modules() if isinstance(m, LoRAFALinear)]


def _into(seen: dict[int, Tensor], place: int) -> Any:
    def keep(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen[place] = args[0]

    return keep
