"""The forward engine for adapters that are only a readout: the model runs once per example.

Nothing inside the model is trained, so an example's base model scores and its representation never
change. They are computed once and stored. A query is then a small matrix product.

The last bits of a forward pass depend on the examples that share the pass. A split's examples are
therefore always divided into passes in the same way. The division does not depend on the stored
results, nor on the examples in a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.forward.grouping import Schedule
from samara.client.forward.representation_store import RepresentationStore, SplitRows
from samara.client.forward.resident import SINGLE_PASS, ResidentForward
from samara.client.forward.streamed import make_forward_engine
from samara.client.forward.trunk_cache import Ids
from samara.shared.model.damping import (
    RANDOM_SEED,
    RANDOM_TEXTS,
    load_damping,
    random_examples,
    texts_to_measure,
)
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import LABEL_BIAS, empty_adapter
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.model.readout import Readout, representations
from samara.shared.model.scorers import Prompt, Scorer
from samara.shared.protocol.layout import Layout
from samara.shared.tasks.base_task import Span
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.profiled_loss import shifts_of_rows
from samara.shared.tasks.rows import Example

UNIT = 256
"""Number of examples computed and stored on disk together."""
DAMPING_MICRO_BATCH = 16
"""Number of random texts in a forward pass that measures the damping. The number is fixed, because
all settings share one damping."""
SCORES_BYTES = 64 * 2**20
"""Maximum size in bytes of the scores computed by one matrix product."""


class RepresentationScorer(Scorer):
    """A scorer that appends the representation to the scores of another scorer.

    Args:
        scorer: the other scorer.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer, self.labels = scorer, scorer.labels + scorer.base.features
        self.base, self.max_length = scorer.base, scorer.max_length
        self.prefix = scorer.prefix

    def prompt(self, text: str, answers: Sequence[str] = (), cut: Span | None = None) -> Prompt:
        """Return the prompt of an example, as tokenized by the other scorer."""
        return self._scorer.prompt(text, answers, cut)

    def scores(self, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """Return the scores followed by the representation, float32 [P, n, labels + features]."""
        scores = self._scorer.scores(hidden, lengths, prompts)
        return torch.cat([scores, representations(self._scorer, hidden, lengths, prompts)], dim=2)


class ReadoutForward:
    """A forward engine for scoring prompts under perturbations of a readout.

    Args:
        engine: engine of the model without adapters, whose scorer is a `RepresentationScorer`.
        layout: layout of the readout.
        labels: number of labels.
        readout: computation of the readout's contribution to the scores.
        store: store of the representations.
        micro_batch: function that returns the maximum number of examples in a forward pass.

    Attributes:
        passes: number of examples run through the model so far.
    """

    def __init__(
        self,
        engine: ResidentForward,
        layout: Layout,
        labels: int,
        readout: Readout,
        store: RepresentationStore,
        micro_batch: Callable[[], int],
    ) -> None:
        self._engine, self._labels, self.passes = engine, labels, 0
        self._readout, self._store, self._micro_batch = readout, store, micro_batch
        self._has_bias = any(tensor.name == LABEL_BIAS for tensor in layout.tensors)

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Compute a split's representations, and use them for its examples from now on.

        Call this method with all examples of a split before any other call with some of them.
        """
        if prompts:
            self._numbers_of(self._store.split(prompts))

    def features(self, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        """Return the features φ(h) of n prompts, float32 [n, features]."""
        return self._gather(prompts)[:, self._labels :].cpu().numpy().copy()

    def base_scores(self, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        """Return the scores of n prompts under the base model, float32 [n, labels]."""
        return self._gather(prompts)[:, : self._labels].cpu().numpy().copy()

    def texts_to_measure(self) -> Sequence[Prompt]:
        """Return the random texts that run through the model before the first example."""
        return self._readout.texts_to_measure()

    def run_pass(self, prompts: Sequence[Prompt]) -> None:
        """Run the model once over prompts to measure time or memory, and discard the results."""
        run_base(self._engine, prompts, 0)

    @torch.inference_mode()
    def scores(
        self,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        schedule: Schedule = SINGLE_PASS,
        whole: bool = False,
    ) -> NDArray[np.float32]:
        """Return the scores of every prompt under every perturbation.

        If a prompt belongs to no split, the given prompts are stored as a new split.

        Args:
            perturbations: P perturbations of each of C clients.
            prompts: C · n prompts, client by client.
            schedule: ignored, because there are no forward passes to divide.
            whole: ignored, because the base model's stored scores are log-likelihoods.

        Returns:
            float32 [P, C·n, labels].
        """
        clients, count = perturbations.clients, perturbations.count
        shape = clients, len(prompts) // clients
        numbers = self._gather(prompts).view(*shape, -1)
        rows = max(1, SCORES_BYTES // (4 * count * clients * self._labels))
        parts = [
            self._score(perturbations, numbers[:, start : start + rows])
            for start in range(0, shape[1], rows)
        ]
        joined = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
        return joined.reshape(count, len(prompts), self._labels).cpu().numpy()

    def score_question(
        self, perturbation: PerturbedAdapters, prompts: Sequence[Prompt]
    ) -> NDArray[np.float32]:
        """Return the scores of prompts that are not in the client's data, float32 [n, labels].

        See `ResidentForward.score_question`.
        """
        damping = self._readout.load_damping()
        raw = self._engine.score_question(empty_adapter()[1], prompts)
        numbers = torch.from_numpy(raw).to(damping.mean.device)
        features = damping.apply(numbers[:, self._labels :])
        whole = torch.cat([numbers[:, : self._labels], features], dim=1)
        with torch.inference_mode():
            return self._score(perturbation, whole[None])[0, 0].cpu().numpy()

    def next_logits(
        self, perturbation: PerturbedAdapters, texts: Sequence[Ids], cache: Any = None
    ) -> tuple[NDArray[np.float32], Any]:
        """Return the base model's logits for the next token; a readout does not change them.

        See `ResidentForward.next_logits`.
        """
        return self._engine.next_logits(empty_adapter()[1], texts, cache)

    def score_pass(self, perturbations: PerturbedAdapters, prompts: Sequence[Prompt]) -> Tensor:
        """Score prompts together, with gradients if autograd is on.

        First call `prepare` with the whole split, outside of inference mode.

        Args:
            perturbations: P perturbations of each of C clients.
            prompts: n prompts in total, equally many per client, client by client.

        Returns:
            float32 [P, n, labels] on the model's device.
        """
        count, clients = perturbations.count, perturbations.clients
        numbers = self._gather(prompts).view(clients, len(prompts) // clients, -1)
        return self._score(perturbations, numbers).reshape(count, len(prompts), self._labels)

    def loss_gradients(
        self,
        center: Perturbations,
        prompts: Sequence[Prompt],
        labels: NDArray[np.int64],
        micro_batch: int = 0,
        is_profiled: bool = False,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean cross-entropy of each client's prompts and its gradient.

        Args:
            center: unperturbed readouts of C clients.
            prompts: C · n prompts, client by client.
            labels: int64 [C, n].
            micro_batch: ignored, because there are no forward passes to divide.
            is_profiled: whether the loss is `profiled_cross_entropy` instead.

        Returns:
            Losses, float64 [C], and their gradients, float64 [C, d].
        """
        clients, count = labels.shape
        numbers = self._gather(prompts).view(clients, count, -1)
        with torch.inference_mode(False), torch.enable_grad():
            weights = center.center.detach().clone().requires_grad_()
            scores = self._score(replace(center, center=weights), numbers)[0].double()
            scores, penalties = scores.flatten(0, 1), np.zeros(clients)
            if is_profiled:
                shifts, penalties = shifts_of_rows(scores.detach().float().cpu().numpy(), labels)
                scores = scores + torch.from_numpy(shifts).to(scores.device)
            right = torch.from_numpy(labels.ravel()).to(scores.device)
            rows = nn.functional.cross_entropy(scores, right, reduction="none")
            losses = rows.view(clients, count).mean(dim=1)
            (gradient,) = torch.autograd.grad(losses.sum(), weights)
        gradients = gradient.cpu().numpy().astype(np.float64).reshape(clients, -1)
        return losses.detach().cpu().numpy() + penalties, gradients

    def _score(self, perturbations: PerturbedAdapters, numbers: Tensor) -> Tensor:
        """Return the scores of examples under perturbations, float32 [P, C, n, labels].

        Args:
            perturbations: P perturbations of each of C clients.
            numbers: base model's scores and features of each example, [C, n, labels + features].
        """
        count, clients, rows = perturbations.count, *numbers.shape[:2]
        features = numbers[..., self._labels :].reshape(clients * rows, -1)
        added = self._readout.added_scores(perturbations, features)
        scores = added.view(count, clients, rows, -1).add_(numbers[..., : self._labels])
        if self._has_bias:
            scores.add_(perturbations.tensor(LABEL_BIAS).view(count, clients, 1, -1))
        return scores

    def _gather(self, prompts: Sequence[Prompt]) -> Tensor:
        """Return the base model's scores and the features, float32 [n, labels + features]."""
        if (split := self._store.whole(prompts)) is not None:
            return self._numbers_of(split)
        located = self._store.locate(prompts)
        if located is None:
            located = [self._store.split(prompts, lasting=False)], np.arange(len(prompts))
        splits, rows = located
        numbers = [self._numbers_of(split) for split in splits]
        whole = numbers[0] if len(numbers) == 1 else torch.cat(numbers)
        return whole.index_select(0, torch.from_numpy(rows).to(whole.device))

    def _numbers_of(self, split: SplitRows) -> Tensor:
        division = self._micro_batch(), torch.get_num_threads()
        return self._store.numbers(split, division, self._compute)

    @torch.no_grad()  # not inference mode, because exact gradients use these numbers
    def _compute(self, prompts: Sequence[Prompt]) -> Tensor:
        """Return a split's base model scores and features, float32 [n, labels + features].

        The model runs over units of examples sorted by length.
        """
        order = sorted(range(len(prompts)), key=lambda i: max(map(len, prompts[i].sequences)))
        damping = self._readout.load_damping()
        numbers = torch.empty(
            len(prompts), self._labels + len(damping.mean), device=damping.mean.device
        )
        # long examples first, so that later passes reuse the memory of earlier passes
        for start in reversed(range(0, len(prompts), UNIT)):
            chosen = order[start : start + UNIT]
            raw = self._raw([prompts[index] for index in chosen]).to(numbers.device)
            numbers[chosen, : self._labels] = raw[:, : self._labels]
            numbers[chosen, self._labels :] = damping.apply(raw[:, self._labels :])
        return numbers

    def _raw(self, prompts: Sequence[Prompt]) -> Tensor:
        """Return a unit's scores and undamped representations, float32 [n, labels + features]."""
        size, disk = self._micro_batch(), self._store.disk
        key = _unit_key(prompts, size)
        if disk is not None and (kept := disk.get(key)) is not None:
            return kept
        self.passes += len(prompts)
        raw = torch.from_numpy(run_base(self._engine, prompts, size))
        return raw if disk is None else disk.put(key, raw)


def make_base_engine(base: BaseModel, scorer: Scorer, streamed: bool) -> ResidentForward:
    """Return an engine that computes scores and representations of a model without adapters."""
    adapter, _ = empty_adapter()
    wrapped = RepresentationScorer(scorer)
    return make_forward_engine(base, adapter, wrapped, streamed, prefix=scorer.prefix)


def run_base(
    engine: ResidentForward, prompts: Sequence[Prompt], micro_batch: int
) -> NDArray[np.float32]:
    """Return an engine's scores of prompts without adapters, float32 [n, scores per prompt]."""
    _, no_adapters = empty_adapter()
    if engine.base.depth:  # other sequences of an example are not read
        prompts = [prompt.only(0) for prompt in prompts]
    scores: NDArray[np.float32] = engine.scores(
        no_adapters, prompts, Schedule("both", micro_batch)
    )[0]
    return scores


def make_readout(
    base: BaseModel,
    task: Task,
    scorer: Scorer,
    damping: str,
    tokenize: Callable[[Example], Prompt],
    streamed: bool = False,
) -> Readout:
    """Return the readout of a model and a task, which loads or measures its damping on first use.

    Args:
        base: the model.
        task: task whose prompts, filled with random tokens, serve to measure the damping.
        scorer: scorer of the model's family.
        damping: value of ``adapter.damping``.
        tokenize: function that turns an example into a prompt.
        streamed: whether the model's blocks are streamed.
    """

    @cache
    def prompts() -> list[Prompt]:
        examples = random_examples(base, task, RANDOM_TEXTS, RANDOM_SEED)
        return [tokenize(example) for example in examples]

    def represent(texts: Sequence[Prompt]) -> NDArray[np.float32]:
        engine = make_base_engine(base, scorer, streamed)
        return run_base(engine, texts, DAMPING_MICRO_BATCH)[:, scorer.labels :]

    return Readout(
        scorer.labels,
        lambda: load_damping(damping, base, prompts, represent),
        base.network.device,
        lambda: texts_to_measure(damping, base, prompts),
    )


def _unit_key(prompts: Sequence[Prompt], micro_batch: int) -> Ids:
    """Return a unit's key in the disk cache: micro-batch size, tokens and positions."""
    numbers = [micro_batch]
    for prompt in prompts:
        for ids, positions, targets in zip(
            prompt.sequences,
            prompt.supervised,
            prompt.targets or ((),) * len(prompt.sequences),
            strict=True,
        ):
            numbers += [-1, *ids, -2, *positions, -3, *targets]
        numbers.append(-4)
    return tuple(numbers)
