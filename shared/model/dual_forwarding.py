"""Dual-forwarding LoRA-FA: P-RGE's Algorithm 1, which stores every perturbed B.

The algorithm is for inference engines, which can neither reset a random seed nor change weights.
The adapter stores B + ε·z and B − ε·z of every query. The update of a step is computed from the
differences of these pairs and the step's projected gradients (P-RGE, section 3.3). This takes
memory for 2·q copies of B, and rounding errors grow with every step. `Perturbations` avoids both
with one master copy and exact replay.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samara.shared.protocol.directions import DIRECTION_BITS
from samara.shared.protocol.layout import Layout


@dataclass(frozen=True, eq=False)
class DualForwarding:
    """The perturbed adapters B[±][query] of Algorithm 1, for any number of queries.

    Attributes:
        layout: names and shapes of the tensors.
        b: perturbed adapters, float32 [signs, q, d]. The sign + comes first.
    """

    layout: Layout
    b: Tensor

    @classmethod
    def begin(
        cls,
        layout: Layout,
        center: NDArray[np.float32],
        directions: NDArray[np.int16],
        epsilon: float,
    ) -> "DualForwarding":
        """Create the perturbed adapters of the first step: q pairs around the unperturbed adapter.

        Args:
            layout: layout of the adapter.
            center: unperturbed adapter, float32 [d].
            directions: directions of the first step, int16 [q, d].
            epsilon: size of the perturbation, ε.
        """
        unperturbed = torch.from_numpy(center).expand(2, len(directions), -1)
        return cls(layout, unperturbed + _signed(directions, epsilon, torch.device("cpu")))

    def advanced(
        self,
        gradients: NDArray[np.float32],
        learning_rate: float,
        epsilon: float,
        directions: NDArray[np.int16] | Tensor,
    ) -> "DualForwarding":
        """Return the perturbed adapters of the next step (Algorithm 1, lines 2–6).

        Args:
            gradients: projected gradients of the last step, float32 [q].
            learning_rate: η.
            epsilon: ε, the same in the last and the next step.
            directions: directions of the next step, int16 [q, d].
        """
        difference = (self.b[0] - self.b[1]) / 2
        step = torch.from_numpy(gradients).to(self.b.device) * (learning_rate / len(gradients))
        update = (step[:, None] * difference / epsilon).sum(0)
        restored = torch.stack([self.b[0] - difference, self.b[1] + difference])
        noise = _signed(directions, epsilon, self.b.device)
        return DualForwarding(self.layout, restored - update + noise)

    @property
    def queries(self) -> int:
        """The number of directions, q."""
        return self.b.shape[1]

    @property
    def count(self) -> int:
        """The number of perturbations, P = signs · q."""
        return self.b.shape[0] * self.b.shape[1]

    @property
    def clients(self) -> int:
        """The number of clients, always 1."""
        return 1

    def select(self, signs: slice, queries: slice) -> "DualForwarding":
        """Return the perturbations of the given signs and queries."""
        return DualForwarding(self.layout, self.b[signs, queries])

    def tensor(self, name: str) -> Tensor:
        """Return one tensor of all perturbations, float32 [P, rows, columns]."""
        elements, rows = self.layout.tensor_slice(name)
        return self.b[..., elements].reshape(self.count, rows, -1)


def _signed(directions: NDArray[np.int16] | Tensor, epsilon: float, device: torch.device) -> Tensor:
    """Return +ε·z and −ε·z, float32 [2, q, d]."""
    noise = torch.as_tensor(directions).to(device, torch.float32)
    noise *= epsilon * 2.0**-DIRECTION_BITS
    return torch.stack([noise, -noise])
