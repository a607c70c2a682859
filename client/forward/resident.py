"""The resident forward engine: the whole model is in memory, and rows go through it in passes."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from client.forward.body import Body
from client.forward.grouping import Schedule, grouped
from shared.model.lora_fa import LABEL_BIAS, Adapter, Adapters
from shared.model.scorers import Prompt, Scorer

_ONE_PASS = Schedule()


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
        self, points: Adapters, prompts: Sequence[Prompt], schedule: Schedule = _ONE_PASS
    ) -> NDArray[np.float32]:
        """Scores of every prompt at every point.

        Args:
            points: P adapters.
            prompts: n examples.
            schedule: how they are grouped into passes. Examples of like length go together, so
                that little is padding.

        Returns:
            float32 [P, n, labels].
        """
        by_length = sorted(
            range(len(prompts)), key=lambda index: max(map(len, prompts[index].sequences))
        )
        size = schedule.micro_batch or len(prompts)
        scores = np.empty((points.count, len(prompts), self._scorer.labels), np.float32)
        for start in range(0, len(prompts), size):
            chosen = by_length[start : start + size]
            together = [prompts[index] for index in chosen]
            for places, some in grouped(points, schedule.grouping):
                scores[places[:, None], chosen] = self._pass(some, together)
        return scores

    @torch.inference_mode()
    def _pass(self, points: Adapters, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
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
