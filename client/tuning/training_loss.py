"""The loss of first-order training, and the precision of its passes."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samara.client.tuning.settings import TuneSettings
from samara.shared.tasks.objectives import ObjectiveName


def summed_loss(scores: Tensor, labels: NDArray[np.int64], goal: ObjectiveName) -> Tensor:
    """Return the loss summed over rows, with its autograd graph.

    Args:
        scores: float32 [rows, width].
        labels: int64 [rows].
        goal: cross-entropy, or likelihood of the right answers.
    """
    right = torch.from_numpy(labels).to(scores.device)
    if goal == "likelihood":
        return -scores.gather(1, right[:, None]).sum()
    return nn.functional.cross_entropy(scores, right, reduction="sum")


def mixed_precision(settings: TuneSettings) -> torch.autocast:
    """Return the context of a training pass, with products in a half type if requested."""
    device, name = torch.device(settings.model.torch_device).type, settings.autocast
    dtype = torch.float16 if name == "float16" else torch.bfloat16
    return torch.autocast(device, dtype, enabled=name != "none")
