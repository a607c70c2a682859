"""The network that computes a reparameterized prefix (Li and Liang, 2021, section 4.3).

Every token of the prefix has an embedding e. From e, a network with one hidden layer computes the
token's keys and values in all layers: W₂·tanh(W₁·e + b₁) + b₂. Embeddings, weights and biases are
all trained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samara.client.spaces.space import SpaceTensor


@dataclass(frozen=True)
class PrefixNetwork:
    """The dimensions and the computation of a prefix network.

    Attributes:
        features: size of an embedding.
        width: size of the hidden layer.
        shapes: shape [heads, m, features of a head] of the keys and of the values, layer by layer.
    """

    features: int
    width: int
    shapes: Sequence[tuple[int, ...]]

    @property
    def tensors(self) -> list[SpaceTensor]:
        """Trained tensors: embeddings of the m tokens, weights and biases of both layers."""
        length, width = self.shapes[0][1], self.width
        made = sum(heads * features for heads, _, features in self.shapes)
        return [
            SpaceTensor("embeddings", (length, self.features)),
            SpaceTensor("hidden.weight", (width, self.features)),
            SpaceTensor("hidden.bias", (width,)),
            SpaceTensor("output.weight", (made, width)),
            SpaceTensor("output.bias", (made,)),
        ]

    def start(self, z: Tensor) -> Tensor:
        """Return the initial θ: zero biases, and weights with the variances of torch's layers.

        Args:
            z: standard-normal numbers, float32 [d].
        """
        spreads = [1, 1 / math.sqrt(3 * self.features), 0, 1 / math.sqrt(3 * self.width), 0]
        parts = torch.split(z, [tensor.size for tensor in self.tensors])
        return torch.cat([part * spread for part, spread in zip(parts, spreads, strict=True)])

    def keys_and_values(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the keys and values under P perturbations, each [P, heads, m, features].

        Args:
            tensors: the trained tensors in the order of `tensors`, as matrices, float32
                [P, rows, columns].
        """
        embeddings, hidden, hidden_bias, output, output_bias = tensors
        inner = torch.tanh(torch.baddbmm(hidden_bias, embeddings, hidden.mT))
        made = torch.baddbmm(output_bias, inner, output.mT)
        parts = torch.split(made, [heads * features for heads, _, features in self.shapes], dim=2)
        return [
            part.view(-1, length, heads, features).transpose(1, 2)
            for part, (heads, length, features) in zip(parts, self.shapes, strict=True)
        ]
