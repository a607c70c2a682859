"""Perturbations of several clients in one pass, each with its own adapters and its own rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from shared.directions import DIRECTION_BITS
from shared.model.lora_fa import Perturbations


@dataclass(frozen=True, eq=False)
class ClientPerturbations(Perturbations):
    """B + s·ε·z of C clients, as `shared.model.lora_fa.Perturbations` are of one.

    A pass at them has its rows point by point and, within a point, client by client, as many rows
    of each. Rows of several clients are then what rows of several queries are: small products with
    different B's behind the shared W·x and A·x.

    Attributes:
        layout: names and shapes of the tensors.
        center: float32 [C, d], the unperturbed adapters.
        directions: int16 [C, q, d], or None for the centers alone.
        epsilon: ε.
        signs: s, +1 and −1, or one of them.
    """

    @property
    def clients(self) -> int:
        """C."""
        return len(self.center)

    def of_client(self, client: int) -> Perturbations:
        """Those of one client."""
        z = None if self.directions is None else self.directions[client]
        return Perturbations(self.layout, self.center[client], z, self.epsilon, self.signs)

    def tensor(self, name: str) -> Tensor:
        """One tensor of all points, float32 [P·C, rows, columns], points outermost."""
        place, rows = self.layout.place(name)
        center = self.center[:, place]
        if self.directions is None:
            return center.reshape(self.clients, rows, -1)
        step = self.directions[:, :, place].transpose(0, 1).to(torch.float32)
        step *= self.epsilon * 2.0**-DIRECTION_BITS
        points = torch.cat([center + sign * step for sign in self.signs])
        return points.reshape(self.count * self.clients, rows, -1)
