"""The resident forward engine: the whole model is in memory, and rows go through it in passes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from client.forward.body import PerturbedBody
from client.forward.grouping import Schedule, split_by_grouping
from shared.errors import TaskError
from shared.model.lora_fa import LABEL_BIAS, Adapter, PerturbedAdapters
from shared.model.scorers import GenerationScorer, Prompt, Scorer

SINGLE_PASS = Schedule()


@dataclass(frozen=True, eq=False)
class Share:
    """What one pass has to score.

    Attributes:
        places: which of all points.
        points: these.
        chosen: which of all prompts.
        prompts: these.
    """

    places: NDArray[np.int64]
    perturbations: PerturbedAdapters
    chosen: Sequence[int]
    prompts: Sequence[Prompt]


class ResidentForward:
    """Scores prompts at points.

    Args:
        adapter: the adapters in the model.
        scorer: of the model's family.
        body: of the same model.
    """

    def __init__(self, adapter: Adapter, scorer: Scorer, body: PerturbedBody) -> None:
        self._adapter, self._scorer, self._body = adapter, scorer, body

    def scores(
        self,
        perturbations: PerturbedAdapters,
        prompts: Sequence[Prompt],
        schedule: Schedule = SINGLE_PASS,
    ) -> NDArray[np.float32]:
        """Scores of every prompt at every point.

        Args:
            points: P adapters of each of C clients.
            prompts: n examples, C · n of them, client by client.
            schedule: how they are grouped into passes. Examples of like length go together, so
                that little is padding.

        Returns:
            float32 [P, C·n, width of the rows]; −∞ where a row has fewer scores than others.

        Raises:
            ValueError: if the clients' examples cannot share a pass; see `have_equal_row_counts`.
        """
        own = len(prompts) // perturbations.clients
        if perturbations.clients > 1 and not have_equal_row_counts(prompts, perturbations.clients):
            raise ValueError(
                f"rows of {perturbations.clients} clients that are not alike in number"
            )
        by_length = [
            sorted(
                range(client * own, (client + 1) * own),
                key=lambda index: max(map(len, prompts[index].sequences)),
            )
            for client in range(perturbations.clients)
        ]
        size = schedule.micro_batch or own
        shape = perturbations.count, len(prompts), self._scorer.width(prompts)
        scores = np.full(shape, -np.inf, np.float32)
        passes = [
            Share(places, some, chosen, [prompts[index] for index in chosen])
            for chosen in (
                [index for order in by_length for index in order[start : start + size]]
                for start in range(0, own, size)
            )
            for places, some in split_by_grouping(perturbations, schedule.grouping)
        ]
        for share, found in zip(passes, self._carried_out(passes), strict=True):
            scores[share.places[:, None], share.chosen, : found.shape[2]] = found
        return scores

    def decode_answers(
        self, perturbation: PerturbedAdapters, prompts: Sequence[Prompt], micro_batch: int = 0
    ) -> list[str]:
        """What the model answers by greedy decoding: always the likeliest token.

        Args:
            point: a single adapter.
            prompts: n examples of a generation task, made without their answers.
            micro_batch: at most so many examples in a pass; 0 is all.

        Returns:
            n texts, each up to what the task says ends an answer.

        Raises:
            TaskError: if the task is of another kind.
        """
        scorer = self._scorer
        if not isinstance(scorer, GenerationScorer):
            raise TaskError("only a generation task has answers to decode; read its scores instead")
        if perturbation.count != 1:
            raise ValueError(f"answers are decoded at one point, not at {perturbation.count}")
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index].sequences[0]))
        written: list[list[int]] = [[] for _ in prompts]
        size = micro_batch or max(1, len(prompts))
        for start in range(0, len(prompts), size):
            unfinished = by_length[start : start + size]
            while unfinished:
                sequences = [
                    prompts[index].sequences[0] + tuple(written[index]) for index in unfinished
                ]
                tokens = self._next_tokens(scorer, perturbation, sequences)
                for index, token in zip(unfinished, tokens, strict=True):
                    written[index].append(token)
                unfinished = [i for i in unfinished if not scorer.answer(written[i])[1]]
        return [scorer.answer(tokens)[0] for tokens in written]

    @torch.inference_mode()
    def _next_tokens(
        self,
        scorer: GenerationScorer,
        perturbation: PerturbedAdapters,
        sequences: Sequence[tuple[int, ...]],
    ) -> list[int]:
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        last = [(len(sequence) - 1,) for sequence in sequences]
        with self._adapter.using(perturbation):
            return scorer.next_tokens(self._body(sequences, 1, last, keep=False), lengths)

    def score_pass(self, perturbations: PerturbedAdapters, prompts: Sequence[Prompt]) -> Tensor:
        """Scores of some prompts at some points, in one pass; gradients flow where they are wanted.

        Args:
            points: P adapters of each of C clients.
            prompts: n examples in all, as many of each client, client by client.

        Returns:
            float32 [P, n, width of these rows] on the model's device.
        """
        sequences = [sequence for prompt in prompts for sequence in prompt.sequences]
        supervised = [places for prompt in prompts for places in prompt.supervised]
        with self._adapter.using(perturbations):
            hidden = self._body(
                sequences, perturbations.count, supervised if all(supervised) else None
            )
        return self._scored(hidden, perturbations, prompts)

    def _scored(
        self, hidden: Tensor, perturbations: PerturbedAdapters, prompts: Sequence[Prompt]
    ) -> Tensor:
        """Scores from hidden states [P·m, S, hidden] of the prompts' sequences."""
        lengths = torch.tensor([len(sequence) for p in prompts for sequence in p.sequences])
        scores = self._scorer.scores(hidden, lengths, prompts)
        if any(tensor.name == LABEL_BIAS for tensor in perturbations.layout.tensors):
            bias = perturbations.tensor(LABEL_BIAS).view(
                perturbations.count, perturbations.clients, 1, -1
            )
            by_client = scores.view(
                perturbations.count, perturbations.clients, -1, scores.shape[-1]
            )
            scores = (by_client + bias).view_as(scores)
        return scores

    def _carried_out(self, passes: Sequence[Share]) -> Iterator[NDArray[np.float32]]:
        """What each pass gives, float32 [its points, its prompts, width]."""
        for share in passes:
            with torch.inference_mode():
                scores = self.score_pass(share.perturbations, share.prompts)
            yield scores.float().cpu().numpy()


def have_equal_row_counts(prompts: Sequence[Prompt], clients: int) -> bool:
    """Whether so many clients' examples can share passes: all examples have as many rows.

    Args:
        prompts: client by client.
        clients: C.
    """
    alike = {(len(p.sequences), tuple(map(len, p.supervised))) for p in prompts}
    return len(prompts) % clients == 0 and len(alike) == 1
