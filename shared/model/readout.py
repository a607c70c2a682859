"""The readout: trained weights on the last representation of an example.

scores = scores of the base model + Hᵀ·(W·φ(h)). h is the representation from which the scorer
computes its scores, and φ is the damping (`samara.shared.model.damping`). W [labels − 1, features]
is the trained readout; W = 0 gives the base model. H [labels − 1, labels] holds Helmert's
orthonormal contrasts between labels. The loss does not depend on the mean of all scores, so labels
− 1 rows suffice.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.shared.model.damping import Damping
from samara.shared.model.lora_fa import READOUT
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.scorers import EncoderScorer, Prompt, Scorer
from samara.shared.tasks.contrasts import contrasts


class Readout:
    """The readout's contribution to the scores.

    Args:
        labels: number of labels.
        damping: function that returns the damping; called at first use.
        device: torch device of the model.
        to_measure: function that returns the texts on which the damping will be measured. It
            returns no texts if the damping can be read from a file.
    """

    def __init__(
        self,
        labels: int,
        damping: Callable[[], Damping],
        device: torch.device,
        to_measure: Callable[[], Sequence[Prompt]] = tuple,
    ) -> None:
        self._contrasts = torch.from_numpy(contrasts(labels)).to(device)
        self._load, self._device = damping, device
        self._damping: Damping | None = None
        self._to_measure = to_measure

    def texts_to_measure(self) -> Sequence[Prompt]:
        """Return the texts on which the damping will be measured; none if it is loaded already."""
        return self._to_measure() if self._damping is None else ()

    def load_damping(self) -> Damping:
        """Return the damping. The first call loads or measures it."""
        if self._damping is None:
            self._damping = self._load().to(self._device)
        return self._damping

    def added_scores(self, perturbations: PerturbedAdapters, features: Tensor) -> Tensor:
        """Return the part of the scores that the readout adds.

        Args:
            perturbations: P perturbations of each of C clients.
            features: φ(h), float32 [C·n, features] if equal under all perturbations, else [P, C·n,
                features].

        Returns:
            float32 [P, C·n, labels]. If the features are equal under all perturbations, the scores
            of a label are contiguous in memory, which speeds up the computation of losses.
        """
        count, clients = perturbations.count, perturbations.clients
        weights = perturbations.tensor(READOUT).view(count, clients, -1, features.shape[-1])
        rows = features.shape[-2] // clients
        if features.ndim == 2:
            by_client = torch.bmm(
                weights.transpose(0, 1).reshape(clients, -1, features.shape[-1]),
                features.view(clients, rows, -1).transpose(1, 2),
            ).view(clients, count, -1, rows)
            coordinates = by_client.permute(1, 2, 0, 3).reshape(count, -1, clients * rows)
            return torch.bmm(self._contrasts.T.expand(count, -1, -1), coordinates).transpose(1, 2)
        coordinates = features.view(count, clients, rows, -1) @ weights.transpose(2, 3)
        return (coordinates @ self._contrasts).reshape(count, clients * rows, -1)


def merge_readout(
    weights: NDArray[np.float32], damping: Damping
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Combine a readout and its damping into M and b, so that the readout adds M·h + b to scores.

    Args:
        weights: W, float32 [labels − 1, features].
        damping: damping of the readout.

    Returns:
        M, float32 [labels, features], and b, float32 [labels].
    """
    basis = contrasts(len(weights) + 1).astype(np.float64)
    matrix = basis.T @ weights.astype(np.float64) @ damping.root.numpy().astype(np.float64)
    bias = -matrix @ damping.mean.numpy().astype(np.float64)
    return matrix.astype(np.float32), bias.astype(np.float32)


def representations(
    scorer: Scorer, hidden: Tensor, lengths: Tensor, prompts: Sequence[Prompt]
) -> Tensor:
    """Return the representation of each prompt: the vector from which its scores are computed.

    For a sentence encoder, the representation is the pooled, normalised vector. Otherwise it is the
    last hidden state at the first supervised position of the first sequence: at the mask of a
    masked LM, or at the last position before a causal LM's answer.

    Args:
        scorer: scorer of the model's family.
        hidden: [P·m, S, hidden], as in `Scorer.scores`.
        lengths: number of tokens of each sequence, int64 [m].
        prompts: n prompts.

    Returns:
        float32 [P, n, features].
    """
    perturbations = len(hidden) // len(lengths)
    if isinstance(scorer, EncoderScorer):
        pooled = scorer.pooled(hidden, lengths.repeat(perturbations))
        return pooled.view(perturbations, len(prompts), -1)
    first = list(accumulate((len(prompt.sequences) for prompt in prompts[:-1]), initial=0))
    positions = [prompt.supervised[0][0] for prompt in prompts]
    by_perturbation = hidden.view(perturbations, len(lengths), *hidden.shape[1:])
    return by_perturbation[:, first, positions].float()
