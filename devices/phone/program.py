"""The modules of a phone's program: exportable pure functions of a state.

No state is kept between calls. Stock mobile bindings do not share mutable buffers between methods,
and a pure function can be repeated after a crash.
"""

import torch
from torch import Tensor, nn

from samara.client.forward.body import PerturbedBody
from samara.shared.model.damping import Damping
from samara.shared.model.dual_forwarding import DualForwarding
from samara.shared.model.head import head_logits, tiled_logits
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import LABEL_BIAS, Adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.replay_torch import directions
from samara.shared.model.scorers import COSINE_TEMPERATURE, EncoderScorer
from samara.shared.protocol.directions import DIRECTION_BITS
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.normal_table import NORMAL_TABLE
from samara.shared.protocol.replay import STATE_BITS


class SeededModule(nn.Module):
    """A module that draws directions from its own table of normal values.

    Args:
        layout: layout of the adapter.
    """

    table: Tensor

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.register_buffer("table", torch.from_numpy(NORMAL_TABLE.copy()))

    def draw(self, seeds: Tensor) -> Tensor:
        """Return the directions of seeds, as integers [n, d] with unit 2⁻¹¹.

        Args:
            seeds: int64 [n], bit patterns of 64-bit seeds.
        """
        return directions(seeds, self.table, self.layout.size, self.layout.distribution)


class ReplayModule(SeededModule):
    """The exact replay: it adds Σ c·z(seed) to the state, in int64."""

    def forward(self, state: Tensor, seeds: Tensor, coefficients: Tensor) -> tuple[Tensor]:
        """Return the state after replaying coefficients.

        Args:
            state: int64 [d], unit 2⁻⁵¹.
            seeds: int64 [n], bit patterns of 64-bit seeds.
            coefficients: int64 [n], unit 2⁻⁴⁰; unused coefficients are 0.

        Returns:
            The state, int64 [d], in a tuple.
        """
        return (replayed(state, self.draw(seeds), coefficients),)


def replayed(state: Tensor, z: Tensor, coefficients: Tensor) -> Tensor:
    """Return state + Σ c·z modulo 2⁶⁴, int64 [d].

    The first half of the terms is added to the second half until one term is left, because
    ExecuTorch's `sum` adds int64 numbers as floats, which is not exact.

    Args:
        state: int64 [d], unit 2⁻⁵¹.
        z: directions, integers [n, d], unit 2⁻¹¹.
        coefficients: int64 [n], unit 2⁻⁴⁰.
    """
    terms = coefficients[:, None] * z.to(torch.int64)
    while len(terms) > 1:
        half, odd = divmod(len(terms), 2)
        pairs = terms[:half] + terms[half : 2 * half]
        terms = torch.cat([pairs, terms[-1:]]) if odd else pairs
    return state + terms[0]


class ScoresModule(nn.Module):
    """A module that returns scores and losses of a batch at several adapters from one pass.

    Args:
        base: causal model with the adapter inserted.
        adapter: adapter of the model.
        answers: answers to compare.
    """

    def __init__(self, base: BaseModel, adapter: Adapter, answers: "Words | Candidates") -> None:
        super().__init__()
        self.network = base.network
        self._adapter = adapter
        self.answers = answers
        self._body = PerturbedBody(base, adapter.first_block)

    def forward(
        self, perturbations: PerturbedAdapters, ids: Tensor, positions: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scores, with the label bias, and the losses −log softmax at the labels.

        Args:
            perturbations: P perturbed adapters.
            ids: int64 [B, S], or [B, C, S] for candidates; see `Words` and `Candidates`.
            positions: int64 [B], position of the last token before the answer.
            labels: int64 [B].

        Returns:
            Scores of the answers, float32 [P, B, labels], and losses, float32 [P, B].
        """
        with self._adapter.using(perturbations):
            hidden = self._body.forward_padded(self.answers.sequences(ids), perturbations.count)
        scores = self.answers.scores(hidden, ids, positions, perturbations.count)
        if any(tensor.name == LABEL_BIAS for tensor in perturbations.layout.tensors):
            bias = perturbations.tensor(LABEL_BIAS).view(perturbations.count, 1, -1)
            scores = (scores.view(perturbations.count, ids.shape[0], -1) + bias).flatten(0, 1)
        chosen = torch.log_softmax(scores, 1).gather(1, labels.repeat(perturbations.count)[:, None])
        shape = perturbations.count, ids.shape[0]
        return scores.view(*shape, -1), -chosen.view(shape)


class Words(nn.Module):
    """Label words of one token each: one sequence per example, right-padded with arbitrary tokens.

    Args:
        base: causal model.
        words: token of each label word; empty if the head has only the rows of the label words.
    """

    words: Tensor | None

    def __init__(self, base: BaseModel, words: list[int]) -> None:
        super().__init__()
        self._base = base
        self.register_buffer("words", torch.tensor(words) if words else None)

    def sequences(self, ids: Tensor) -> Tensor:
        """Return the sequences that the model reads, given ids [B, S]."""
        return ids

    def last(self, hidden: Tensor, ids: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the last hidden states before the answers, [P·B, hidden].

        Args:
            hidden: hidden states of the sequences, [P·B, S, hidden], ordered by perturbation.
            ids: [B, S].
            positions: [B].
            count: P.
        """
        return _read_at(hidden, positions, count)

    def scores(self, hidden: Tensor, ids: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the log-likelihood of each label word, float32 [P·B, labels]; see `last`.

        If the head has only the rows of the label words, the scores are their logits.
        """
        read = self.last(hidden, ids, positions, count)
        if self.words is None:
            return head_logits(self._base, read)
        logits = _shifted_logits(self._base, read)
        return logits.index_select(1, self.words) - logits.exp().sum(1, keepdim=True).log()


class Candidates(nn.Module):
    """Answers of several tokens, with one sequence per example and candidate.

    A sequence contains the candidate's tokens. Positions after a candidate are −1. A candidate's
    score is the mean log-likelihood of its tokens.

    Args:
        base: causal model.
        tokens: T, maximum tokens of a candidate.
    """

    def __init__(self, base: BaseModel, tokens: int) -> None:
        super().__init__()
        self._base = base
        self.tokens = tokens

    def sequences(self, ids: Tensor) -> Tensor:
        """Return the sequences that the model reads, [B·C, S], given ids [B, C, S]."""
        return ids.clamp(min=0).flatten(0, 1)

    def last(self, hidden: Tensor, ids: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the last hidden states before the answers, [P·B, hidden]; see `Words.last`.

        The input has the shape [P·B·C, S, hidden]. The candidates of an example have equal states
        before the answer, so the state of the first candidate is returned.
        """
        first = hidden.view(-1, ids.shape[1], *hidden.shape[1:])[:, 0]
        return _read_at(first, positions, count)

    def scores(self, hidden: Tensor, ids: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the mean log-likelihood of each candidate's tokens, float32 [P·B, C]."""
        _, candidates, length = ids.shape
        after = positions[:, None] + torch.arange(self.tokens)
        read_at = after.clamp(max=length - 2)  # the last token predicts nothing
        index = read_at[:, None].expand(-1, candidates, -1)
        targets = ids.gather(2, index + 1)
        is_target = (targets >= 0) & (after[:, None] <= length - 2)
        rows = index.flatten(0, 1).repeat(count, 1)[..., None].expand(-1, -1, hidden.shape[2])
        read = hidden.gather(1, rows).flatten(0, 1)
        logits = _shifted_logits(self._base, read)
        wanted = targets.clamp(min=0).flatten().repeat(count)[:, None]
        picked = logits.gather(1, wanted) - logits.exp().sum(1, keepdim=True).log()
        weights = is_target.to(torch.float32)
        weights = (weights / weights.sum(2, keepdim=True)).flatten(0, 1).repeat(count, 1)
        return (picked.view(-1, self.tokens) * weights).sum(1).view(-1, candidates)


class Unscored(nn.Module):
    """Answers of a model that is truncated below its head; all answers get equal scores.

    The model reads a single sequence per example. A readout only reads the hidden state before the
    answer, which is the same for all candidates.

    Args:
        labels: number of answers.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        self._labels = labels

    def sequences(self, ids: Tensor) -> Tensor:
        """Return the sequences that the model reads, [B, S], given ids [B, S] or [B, C, S]."""
        return ids if ids.ndim == 2 else ids[:, 0].clamp(min=0)

    def last(self, hidden: Tensor, ids: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return the last hidden states before the answers; see `Words.last`."""
        return _read_at(hidden, positions, count)

    def scores(self, hidden: Tensor, ids: Tensor, positions: Tensor, count: int) -> Tensor:
        """Return zeros, float32 [P·B, labels]."""
        return torch.zeros(len(positions) * count, self._labels)


class RepresentationModule(nn.Module):
    """A module that returns the base model's scores of a batch, and the features for a readout.

    The damping is part of the program. A phone therefore only needs a product with the readout's
    matrix, and the program's hash covers the damping.

    Args:
        base: causal model or sentence encoder.
        answers: answers to compare, or the scorer of a sentence encoder.
        damping: damping of the readout; None leaves representations unchanged.
    """

    def __init__(
        self,
        base: BaseModel,
        answers: Words | Candidates | Unscored | EncoderScorer,
        damping: Damping | None,
    ) -> None:
        super().__init__()
        self.network = base.network
        self._base = base
        self._answers = answers
        self.register_buffer("mean", damping.mean if damping else None)
        self.register_buffer("root", damping.root.T.contiguous() if damping else None)

    def forward(self, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the base model, and the features φ(h).

        Args:
            ids: int64 [B, S], or [B, C, S] for candidates; see `Words` and `Candidates`.
            positions: int64 [B], position of each example's last token before the answer.

        Returns:
            float32 [B, labels] and float32 [B, features].
        """
        answers = self._answers
        if isinstance(answers, EncoderScorer):
            mask = (torch.arange(ids.shape[1]) <= positions[:, None]).to(torch.int64)
            hidden = self._base.body(input_ids=ids, attention_mask=mask).last_hidden_state
            read = answers.pooled(hidden, positions + 1)
            scores = nn.functional.linear(read, answers.label_embeddings) / COSINE_TEMPERATURE
        else:
            hidden = self._base.body(input_ids=answers.sequences(ids)).last_hidden_state.float()
            read = answers.last(hidden, ids, positions, 1)
            scores = answers.scores(hidden, ids, positions, 1)
        if self.mean is None or self.root is None:
            return scores, read
        return scores, nn.functional.linear(read - self.get_buffer("mean"), self.get_buffer("root"))


class DirectionsModule(SeededModule):
    """A module that returns the directions of seeds, in int64."""

    def forward(self, seeds: Tensor) -> tuple[Tensor]:
        """Return the directions of seeds, int64 [n, d] with unit 2⁻¹¹, in a tuple.

        Args:
            seeds: int64 [n], bit patterns of 64-bit seeds.
        """
        return (self.draw(seeds).to(torch.int64),)


def _read_at(hidden: Tensor, positions: Tensor, count: int) -> Tensor:
    """Return the hidden states at the positions [B], [count·B, hidden].

    Args:
        hidden: hidden states of the sequences, [count·B, S, hidden].
        positions: [B].
        count: number of perturbations.
    """
    rows = torch.arange(hidden.shape[0])
    return hidden[rows, positions.repeat(count) if count > 1 else positions]


def _shifted_logits(base: BaseModel, read: Tensor) -> Tensor:
    """Return the logits of hidden states [n, hidden] minus their maximum, [n, vocabulary].

    Subtracting the maximum keeps the exponentials in range.
    """
    logits = torch.cat(list(tiled_logits(base, read)))
    return logits - logits.amax(1, keepdim=True)


class TrainStepModule(SeededModule):
    """A step of P-RGE from an exact state (P-RGE, section 3.2).

    Args:
        scores: module that computes scores and losses.
        layout: layout of the adapter.
    """

    def __init__(self, scores: ScoresModule, layout: Layout) -> None:
        super().__init__(layout)
        self.scores = scores

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
        """Apply the previous step's update, then compute losses under new directions on a batch.

        Args:
            state: int64 [d].
            ids: int64 [B, S].
            positions: int64 [B].
            labels: int64 [B].
            previous_seeds: int64 [q].
            previous_coefficients: int64 [q], unit 2⁻⁴⁰; 0 applies nothing.
            seeds: int64 [q], seeds of the directions to try.
            epsilon: float32 [1]; at 0 every perturbation is the state itself.

        Returns:
            Scores float32 [2q, B, labels] and losses float32 [2q, B], with +ε first, and the state
            after the previous update, int64 [d].
        """
        drawn = self.draw(torch.cat([previous_seeds, seeds]))
        state = replayed(state, drawn[: len(seeds)], previous_coefficients)
        z = drawn[len(seeds) :]
        center = state.to(torch.float32) * 2.0**-STATE_BITS
        step = z.to(torch.float32) * (epsilon * 2.0**-DIRECTION_BITS)
        perturbations = DualForwarding(self.layout, torch.stack([center + step, center - step]))
        scores, losses = self.scores(perturbations, ids, positions, labels)
        return scores, losses, state


class AdapterScoresModule(nn.Module):
    """A module that returns the scores of a batch at adapters that the caller has perturbed.

    Args:
        scores: module that computes scores.
        layout: layout of the adapter.
    """

    def __init__(self, scores: ScoresModule, layout: Layout) -> None:
        super().__init__()
        self.scores = scores
        self.layout = layout

    def forward(self, weights: Tensor, ids: Tensor, positions: Tensor) -> tuple[Tensor]:
        """Return the scores of the answers, float32 [P, B, labels], in a tuple.

        Args:
            weights: float32 [P, d], trained weights of P adapters.
            ids: int64 [B, S], or [B, C, S] for candidates.
            positions: int64 [B], position of the last token before the answer.
        """
        adapters = DualForwarding(self.layout, weights[None])
        scores, _ = self.scores(adapters, ids, positions, torch.zeros_like(positions))
        return (scores,)


class AlgorithmOneModule(SeededModule):
    """The paper's dual-forwarding module, which stores its 2·q adapters (P-RGE, Algorithm 1).

    The stored adapters are rounded at every step, and differ between machines. A program with this
    module therefore cannot take part in a run.

    Args:
        scores: module that computes scores and losses.
        layout: layout of the adapter.
        queries: q, number of directions.
    """

    b: Tensor

    def __init__(self, scores: ScoresModule, layout: Layout, queries: int) -> None:
        super().__init__(layout)
        self.scores = scores
        # Both halves are equal: the first call has no noise to remove and no update to apply.
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
        """Remove the last perturbation, update, perturb again, and compute scores (lines 2 to 8).

        Args:
            ids: int64 [B, S].
            positions: int64 [B].
            labels: int64 [B].
            gradients: float32 [q], projected gradients of the previous call; ignored in the first
                call.
            learning_rate: float32 [1], η.
            epsilon: float32 [1], ε > 0, the same as in the previous call.
            seeds: int64 [q].

        Returns:
            Scores float32 [2q, B, labels] and losses float32 [2q, B], with +ε first.
        """
        difference = (self.b[0] - self.b[1]) / 2
        step = gradients * (learning_rate / len(gradients))
        update = (step[:, None] * difference / epsilon).sum(0)
        z = self.draw(seeds)
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
