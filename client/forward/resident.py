"""The resident forward engine: the whole model is in memory, all rows go through it in one pass."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client.forward.body import Body
from shared.model.lora_fa import LABEL_BIAS, Adapter, Points
from shared.model.scorers import Prompt, Scorer


class ResidentForward:
    """Scores prompts at points.

    Args:
        adapter: the adapters in the model.
        scorer: of the model's family.
        body: of the same model.
    """

    def __init__(self, adapter: Adapter, scorer: Scorer, body: Body) -> None:
        self._adapter, self._scorer, self._body = adapter, scorer, body

    def scores(
        self, points: Points, prompts: Sequence[Prompt], micro_batch: int = 0
    ) -> NDArray[np.float32]:
        """Scores of every prompt at every point.

        Args:
            points: P perturbed adapters.
            prompts: n examples.
            micro_batch: at most so many examples in a pass, those of like length together so that
                little is padding; 0 is all in one pass.

        Returns:
            float32 [P, n, labels].
        """
        by_length = sorted(
            range(len(prompts)), key=lambda index: max(map(len, prompts[index].sequences))
        )
        size = micro_batch or len(prompts)
        scores = np.empty((points.count, len(prompts), self._scorer.labels), np.float32)
        for start in range(0, len(prompts), size):
            chosen = by_length[start : start + size]
            scores[:, chosen] = self._pass(points, [prompts[index] for index in chosen])
        return scores

    @torch.inference_mode()
    def _pass(self, points: Points, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        sequences = [sequence for prompt in prompts for sequence in prompt.sequences]
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        supervised = [places for prompt in prompts for places in prompt.supervised]
        with self._adapter.at(points):
            hidden = self._body(sequences, points.count, supervised if all(supervised) else None)
        scores = self._scorer.scores(hidden, lengths, prompts)
        if any(tensor.name == LABEL_BIAS for tensor in points.layout.tensors):
            scores = scores + points.tensor(LABEL_BIAS)[:, None, :, 0]
        result: NDArray[np.float32] = scores.float().cpu().numpy()
        return result
