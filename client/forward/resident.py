"""The forward engine for a model that stays entirely in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule, split_by_grouping
from samara.client.forward.trunk_cache import Ids
from samara.client.forward.turns import forward_pass
from samara.shared.errors import TaskError
from samara.shared.model.head import tiled_logits
from samara.shared.model.lora_fa import LABEL_BIAS, Adapter
from samara.shared.model.perturbations import Perturbations, PerturbedAdapters
from samara.shared.model.readout import Readout, representations
from samara.shared.model.scorers import GenerationScorer, Prompt, Scorer
from samara.shared.tasks.profiled_loss import shifts_of_rows

SINGLE_PASS = Schedule()


@dataclass(frozen=True, eq=False)
class PassBatch:
    """The perturbations and prompts of one forward pass.

    Attributes:
        perturbation_indices: indices of the pass's perturbations among all perturbations.
        perturbations: perturbations of the pass.
        prompt_indices: indices of the pass's prompts among all prompts.
        prompts: prompts of the pass.
        whole: whether to compute log-likelihoods even if the run's steps need only logits.
    """

    perturbation_indices: NDArray[np.int64]
    perturbations: PerturbedAdapters
    prompt_indices: Sequence[int]
    prompts: Sequence[Prompt]
    whole: bool


class ResidentForward:
    """A forward engine, which scores prompts under perturbations.

    Args:
        adapter: adapters in the model.
        scorer: scorer of the model's family.
        body: body of the model.
        readout: computation of the readout's contribution to the scores; None without a readout.

    Attributes:
        base: the model.
        passes: number of rows, examples times perturbations, run through the model so far. Backward
            passes do not count. Every token of a decoded answer counts as a row.
    """

    def __init__(
        self,
        adapter: Adapter,
        scorer: Scorer,
        body: PerturbedBody,
        readout: Readout | None = None,
    ) -> None:
        self._adapter, self._scorer, self._body = adapter, scorer, body
        self.base = scorer.base
        self._readout, self.passes = readout, 0

    def scores(
        self,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        schedule: Schedule = SINGLE_PASS,
        whole: bool = False,
    ) -> NDArray[np.float32]:
        """Return the scores of every prompt under every perturbation.

        Args:
            perturbations: P perturbations of each of C clients.
            prompts: C · n prompts, client by client.
            schedule: division into passes; examples of similar length share a pass to limit
                padding.
            whole: whether to compute log-likelihoods even if the run's steps need only logits.

        Returns:
            float32 [P, C·n, width of the rows]; −∞ where a row has fewer scores than other rows.

        Raises:
            ValueError: if the clients' examples cannot share a pass; see `have_equal_row_counts`.
        """
        clients = perturbations.clients
        if clients > 1 and not have_equal_row_counts(prompts, clients):
            raise ValueError(f"the examples of {clients} clients have different numbers of rows")
        if self._readout is not None:
            self._readout.load_damping()  # loading may itself run forward passes
        self.passes += perturbations.count * len(prompts)
        shape = perturbations.count, len(prompts), self._scorer.width(prompts)
        scores = np.full(shape, -np.inf, np.float32)
        # long examples first, so that later passes reuse the memory of earlier passes
        micro_batches = reversed(list(_micro_batches(prompts, clients, schedule.micro_batch)))
        batches = [
            PassBatch(indices, group, chosen, [prompts[index] for index in chosen], whole)
            for chosen in micro_batches
            for indices, group in split_by_grouping(perturbations, schedule.grouping)
        ]
        for batch, results in zip(batches, self._run_passes(batches), strict=True):
            rows = batch.perturbation_indices[:, None], batch.prompt_indices
            scores[*rows, : results.shape[2]] = results
        return scores

    def decode_answers(
        self, perturbation: PerturbedAdapters, prompts: Sequence[Prompt], micro_batch: int = 0
    ) -> list[str]:
        """Decode the model's answers greedily: each token is the most likely token.

        Args:
            perturbation: a single perturbation, or the unperturbed adapter.
            prompts: n prompts of a generation task, without answers.
            micro_batch: maximum number of examples in a pass; 0 for no limit.

        Returns:
            n texts, each without its final stop text.

        Raises:
            TaskError: if the task is not a generation task.
        """
        scorer = self._scorer
        if not isinstance(scorer, GenerationScorer):
            raise TaskError("only a generation task has answers to decode; read its scores instead")
        if perturbation.count != 1:
            raise ValueError(
                f"answers are decoded under one perturbation, not under {perturbation.count}"
            )
        sequences = [prompt.sequences[0] for prompt in prompts]
        size = micro_batch or max(1, len(prompts))
        written = self._decode(scorer, perturbation, sequences, size)
        return [scorer.answer(tokens)[0] for tokens in written]

    @torch.inference_mode()
    def _decode(
        self,
        scorer: GenerationScorer,
        perturbation: PerturbedAdapters,
        sequences: Sequence[Ids],
        size: int,
    ) -> list[list[int]]:
        """Return the most likely tokens after each sequence; text after an answer's end may follow.

        Sequences of equal length run together, so there is no padding. With a KV cache, each token
        after the first needs a pass over one token only.
        """
        written: list[list[int]] = [[] for _ in sequences]
        for group in _of_one_length(sequences, size):
            given, cache = [sequences[index] for index in group], None
            while not all(scorer.answer(written[index])[1] for index in group):
                with forward_pass(), self._adapter.using(perturbation):
                    hidden, cache = self._body.continue_texts(given, cache)
                    tokens = scorer.next_tokens(hidden)
                self.passes += len(group)
                for index, token in zip(group, tokens, strict=True):
                    written[index].append(token)
                given = [(token,) for token in tokens]
                if cache is None:
                    given = [sequences[index] + tuple(written[index]) for index in group]
        return written

    def score_pass(
        self,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        use_cache: bool = True,
        whole: bool = False,
    ) -> Tensor:
        """Score prompts in one forward pass, with gradients if autograd is on.

        Args:
            perturbations: P perturbations of each of C clients.
            prompts: n prompts in total, equally many per client, client by client.
            use_cache: whether to use the cache of the trunk's outputs, if there is one.
            whole: whether to compute log-likelihoods even if the run's steps need only logits.

        Returns:
            float32 [P, n, width of the rows] on the model's device.
        """
        sequences = [sequence for prompt in prompts for sequence in prompt.sequences]
        supervised = [positions for prompt in prompts for positions in prompt.supervised]
        with self._adapter.using(perturbations):
            hidden = self._body(
                sequences,
                perturbations.count,
                supervised if all(supervised) else None,
                use_cache,
                pack=self._may_pack(perturbations),
            )
        return self._score_hidden(hidden, perturbations, prompts, whole)

    def _may_pack(self, perturbations: PerturbedAdapters) -> bool:
        """Return whether sequences of a pass may share rows under these perturbations."""
        return self._adapter.packs and perturbations.clients == 1

    def score_question(
        self, perturbation: PerturbedAdapters, prompts: Sequence[Prompt]
    ) -> NDArray[np.float32]:
        """Return the scores of prompts that are not in the client's data, in one forward pass.

        Nothing about the prompts is stored in memory or on disk. They do not count in `passes`.

        Args:
            perturbation: a single perturbation, or the unperturbed adapter.
            prompts: n prompts.

        Returns:
            float32 [n, width of the rows].
        """
        if self._readout is not None:
            self._readout.load_damping()
        with torch.inference_mode():
            scores = self.score_pass(perturbation, prompts, use_cache=False, whole=True)[0]
        return scores.float().cpu().numpy()

    @torch.inference_mode()
    def next_logits(
        self, perturbation: PerturbedAdapters, texts: Sequence[Ids], cache: Any = None
    ) -> tuple[NDArray[np.float32], Any]:
        """Return the logits for the next token of texts, in one forward pass.

        Args:
            perturbation: a single perturbation, or the unperturbed adapter.
            texts: tokens of m texts of equal length; with a cache, only the tokens not yet in it.
            cache: keys and values of the texts so far, as returned by the previous call.

        Returns:
            float32 [m, vocabulary], and the cache for the next call; None if the model has no
            cache.
        """
        with self._adapter.using(perturbation):
            hidden, cache = self._body.continue_texts(texts, cache)
        logits = torch.cat(list(tiled_logits(self._scorer.base, hidden)))
        return logits.cpu().numpy(), cache

    @torch.inference_mode()
    def answer_logits(
        self, perturbation: PerturbedAdapters, prompt: Prompt
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the logits for the tokens of a given answer, computed in one forward pass.

        Args:
            perturbation: a single perturbation, or the unperturbed adapter.
            prompt: prompt of a generation task with its answer.

        Yields:
            float32 [tokens, vocabulary], tile by tile as from `tiled_logits`.
        """
        self.passes += 1
        with forward_pass(), self._adapter.using(perturbation):
            hidden = self._body(prompt.sequences, 1, prompt.supervised)
        tiles = tiled_logits(self._scorer.base, hidden[0, list(prompt.supervised[0])])
        while True:
            with forward_pass():  # the head takes no turn by itself
                logits = next(tiles, None)
            if logits is None:
                return
            yield logits.cpu().numpy()

    def loss_gradients(
        self,
        center: Perturbations,
        prompts: Sequence[Prompt],
        labels: NDArray[np.int64],
        micro_batch: int = 0,
        is_profiled: bool = False,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean cross-entropy of each client's prompts and its gradient.

        Each micro-batch takes one forward and one backward pass. A profiled loss has one shift for
        all of a client's examples. Their scores are therefore computed first, in passes without
        gradients.

        Args:
            center: unperturbed adapters of C clients.
            prompts: C · n prompts, client by client.
            labels: int64 [C, n].
            micro_batch: maximum number of a client's examples in a pass; 0 for no limit.
            is_profiled: whether the loss is `profiled_cross_entropy` instead.

        Returns:
            Losses, float64 [C], and their gradients, float64 [C, d]; the passes' float32 gradients
            are summed in float64.

        Raises:
            ValueError: if the clients' examples cannot share a pass; see `have_equal_row_counts`.
        """
        clients, count = labels.shape
        if clients > 1 and not have_equal_row_counts(prompts, clients):
            raise ValueError(f"the examples of {clients} clients have different numbers of rows")
        if self._readout is not None:
            self._readout.load_damping()
        shifts, penalties = None, np.zeros(clients)
        if is_profiled:
            scores = self.scores(center, prompts, Schedule(micro_batch=micro_batch))[0]
            shifts, penalties = shifts_of_rows(scores, labels)
        self.passes += len(prompts)
        losses = np.zeros(labels.size)
        gradients = np.zeros((clients, center.layout.element_count))
        for chosen in _micro_batches(prompts, clients, micro_batch):
            with forward_pass(), torch.inference_mode(False), torch.enable_grad():
                weights = center.center.detach().clone().requires_grad_()
                adapters = replace(center, center=weights)
                scores = self.score_pass(adapters, [prompts[index] for index in chosen])[0]
                right = torch.from_numpy(labels.ravel()[chosen]).to(scores.device)
                exact = scores.double()
                if shifts is not None:
                    exact = exact + torch.from_numpy(shifts[chosen]).to(scores.device)
                rows = nn.functional.cross_entropy(exact, right, reduction="none")
                (gradient,) = torch.autograd.grad(rows.sum(), weights)
            losses[chosen] = rows.detach().cpu().numpy()
            gradients += gradient.cpu().numpy().astype(np.float64).reshape(clients, -1)
        return losses.reshape(clients, count).mean(axis=1) + penalties, gradients / count

    def _score_hidden(
        self,
        hidden: Tensor,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        whole: bool = False,
    ) -> Tensor:
        """Return the scores of prompts from their sequences' hidden states, [P·m, S, hidden]."""
        lengths = torch.tensor([len(sequence) for p in prompts for sequence in p.sequences])
        score = self._scorer.whole_scores if whole else self._scorer.scores
        scores = score(hidden, lengths, prompts)
        if self._readout is not None:
            h = representations(self._scorer, hidden, lengths, prompts)
            features = self._readout.load_damping().apply(h)
            scores = scores + self._readout.added_scores(perturbations, features)
        if any(tensor.name == LABEL_BIAS for tensor in perturbations.layout.tensors):
            bias = perturbations.tensor(LABEL_BIAS)
            bias = bias.view(perturbations.count, perturbations.clients, 1, -1)
            by_client = scores.view(
                perturbations.count, perturbations.clients, -1, scores.shape[-1]
            )
            scores = (by_client + bias).view_as(scores)
        return scores

    def _run_passes(self, batches: Sequence[PassBatch]) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of each pass, float32 [perturbations, prompts, width of the rows]."""
        for batch in batches:
            with forward_pass():
                with torch.inference_mode():
                    scores = self.score_pass(batch.perturbations, batch.prompts, whole=batch.whole)
                result = scores.float().cpu().numpy()
            yield result


def _micro_batches(
    prompts: Sequence[Prompt], clients: int, micro_batch: int
) -> Iterator[list[int]]:
    """Yield the prompt indices of each pass, client by client.

    Prompts of similar length share a pass.

    Args:
        prompts: C · n prompts, client by client.
        clients: number C of clients.
        micro_batch: maximum number of a client's examples in a pass; 0 puts all examples into one
            pass.
    """
    per_client = len(prompts) // clients
    by_length = [
        sorted(
            range(client * per_client, (client + 1) * per_client),
            key=lambda index: max(map(len, prompts[index].sequences)),
        )
        for client in range(clients)
    ]
    size = micro_batch or per_client
    for start in range(0, per_client, size):
        yield [index for order in by_length for index in order[start : start + size]]


def have_equal_row_counts(prompts: Sequence[Prompt], clients: int) -> bool:
    """Return whether all prompts consist of equally many rows, so that clients can share passes.

    Args:
        prompts: prompts, client by client.
        clients: number C of clients.
    """
    row_counts = {(len(p.sequences), tuple(map(len, p.supervised))) for p in prompts}
    return len(prompts) % clients == 0 and len(row_counts) == 1


def _of_one_length(sequences: Sequence[Ids], size: int) -> Iterator[list[int]]:
    """Yield indices of sequences of equal length, in batches of limited size."""
    indices = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    for _, alike in groupby(indices, key=lambda index: len(sequences[index])):
        group = list(alike)
        for start in range(0, len(group), size):
            yield group[start : start + size]
