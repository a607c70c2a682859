"""What a phone's program computes: pure functions of a state, as modules that can be exported.

Nothing is kept between calls. Stock mobile bindings do not share mutable buffers between methods,
and a function of its inputs can be repeated after a crash.
"""

import torch
from torch import Tensor, nn

from client.forward.body import PerturbedBody
from shared.directions import DIRECTION_BITS
from shared.layout import Layout
from shared.model.dual_forwarding import DualForwarding
from shared.model.head import tiled_logits
from shared.model.loading import BaseModel
from shared.model.lora_fa import Adapter, PerturbedAdapters
from shared.model.replay_torch import directions
from shared.normal_table import NORMAL_TABLE
from shared.replay import STATE_BITS


class ReplayModule(nn.Module):
    """state + Σ c·z(seed), in int64.

    Args:
        layout: of the adapter.
    """

    table: Tensor

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.register_buffer("table", torch.from_numpy(NORMAL_TABLE.copy()))

    def forward(self, state: Tensor, seeds: Tensor, coefficients: Tensor) -> tuple[Tensor]:
        """The state after.

        Args:
            state: int64 [d], unit 2⁻⁵¹.
            seeds: int64 [n], the bits of 64-bit seeds.
            coefficients: int64 [n], unit 2⁻⁴⁰; what is not used is 0.

        Returns:
            int64 [d], one.
        """
        z = directions(seeds, self.table, self.layout.size, self.layout.distribution)
        # one after the other: ExecuTorch's `sum` of int64 adds in floats and is not exact
        for index in range(len(seeds)):
            state = state + coefficients[index : index + 1] * z[index].to(torch.int64)
        return (state,)


class ScoresModule(nn.Module):
    """Scores and losses of a batch at some adapters, by one pass over the frozen weights.

    Args:
        base: a causal model with `adapter` in it.
        adapter: the adapters.
        words: the one token of every label word.
    """

    words: Tensor

    def __init__(self, base: BaseModel, adapter: Adapter, words: list[int]) -> None:
        super().__init__()
        self.network = base.network
        self._base, self._adapter = base, adapter
        self._body = PerturbedBody(base, adapter.first_block)
        self.register_buffer("words", torch.tensor(words))

    def forward(
        self, perturbations: PerturbedAdapters, ids: Tensor, positions: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Log-likelihoods of the label words, and −log softmax of them at the label.

        Args:
            points: P adapters.
            ids: int64 [B, S], padded on the right with anything.
            positions: int64 [B], where the label word is asked for.
            labels: int64 [B].

        Returns:
            float32 [P, B, labels] and float32 [P, B].
        """
        with self._adapter.using(perturbations):
            hidden = self._body.forward_padded(ids, perturbations.count)
        rows = torch.arange(len(hidden))
        read = hidden[rows, positions.repeat(perturbations.count)]
        logits = torch.cat(list(tiled_logits(self._base, read)))
        # less the largest: the sum of exponentials is the same, and stays in range
        shifted = logits - logits.amax(1, keepdim=True)
        found = shifted.index_select(1, self.words) - shifted.exp().sum(1, keepdim=True).log()
        chosen = torch.log_softmax(found, 1).gather(1, labels.repeat(perturbations.count)[:, None])
        shape = perturbations.count, len(ids)
        return found.view(*shape, -1), -chosen.view(shape)


class TrainStepModule(nn.Module):
    """One step of P-RGE from an exact state (P-RGE, section 3.2).

    Args:
        scores: of the model.
        layout: of the adapter.
    """

    def __init__(self, scores: ScoresModule, layout: Layout) -> None:
        super().__init__()
        self.scores, self.replay = scores, ReplayModule(layout)
        self.layout = layout

    def forward(
        self,
        state: Tensor,
        ids: Tensor,
        positions: Tensor,
        labels: Tensor,
        previous_seeds: Tensor,
        previous_coefficients: Tensor,
        seeds: Tensor,
        epsilon: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply what the step before came to, then try new directions on a batch.

        Args:
            state: int64 [d].
            ids: int64 [B, S].
            positions: int64 [B].
            labels: int64 [B].
            previous_seeds: int64 [q].
            previous_coefficients: int64 [q], unit 2⁻⁴⁰; 0 applies nothing.
            seeds: int64 [q], to be tried.
            epsilon: float32 [1]; at 0 every point is the state itself.

        Returns:
            Scores float32 [2q, B, labels] and losses float32 [2q, B], those of +ε first; the state
            after the previous coefficients, int64 [d].
        """
        (state,) = self.replay(state, previous_seeds, previous_coefficients)
        z = directions(seeds, self.replay.table, self.layout.size, self.layout.distribution)
        center = state.to(torch.float32) * 2.0**-STATE_BITS
        step = z.to(torch.float32) * (epsilon * 2.0**-DIRECTION_BITS)
        perturbations = DualForwarding(self.layout, torch.stack([center + step, center - step]))
        scores, losses = self.scores(perturbations, ids, positions, labels)
        return scores, losses, state


class AlgorithmOneModule(nn.Module):
    """The paper's dual-forwarding module, which keeps its 2·q adapters (P-RGE, Algorithm 1).

    A step leaves rounding behind, and no two machines stay alike: it takes part in no run.

    Args:
        scores: of the model.
        layout: of the adapter.
        queries: q.
    """

    table: Tensor
    b: Tensor

    def __init__(self, scores: ScoresModule, layout: Layout, queries: int) -> None:
        super().__init__()
        self.scores, self.layout = scores, layout
        self.register_buffer("table", torch.from_numpy(NORMAL_TABLE.copy()))
        # equal halves: the first call finds no noise to take back and no update to make
        self.register_buffer("b", torch.zeros(2, queries, layout.size))

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        labels: Tensor,
        gradients: Tensor,
        learning_rate: Tensor,
        epsilon: Tensor,
        seeds: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Recover the last noise, update, perturb anew, and score (lines 2 to 8).

        Args:
            ids: int64 [B, S].
            positions: int64 [B].
            labels: int64 [B].
            gradients: float32 [q], of the call before; anything in the first.
            learning_rate: float32 [1], η.
            epsilon: float32 [1], ε > 0 of the call before and of this one.
            seeds: int64 [q].

        Returns:
            Scores float32 [2q, B, labels] and losses float32 [2q, B], those of +ε first.
        """
        difference = (self.b[0] - self.b[1]) / 2
        step = gradients * (learning_rate / len(gradients))
        update = (step[:, None] * difference / epsilon).sum(0)
        z = directions(seeds, self.table, self.layout.size, self.layout.distribution)
        noise = z.to(torch.float32) * (epsilon * 2.0**-DIRECTION_BITS)
        after = torch.stack(
            [
                self.b[0] - difference - update + noise,
                self.b[1] + difference - update - noise,
            ]
        )
        self.b.copy_(after)
        perturbations = DualForwarding(self.layout, after)
        scores, losses = self.scores(perturbations, ids, positions, labels)
        return scores, losses
