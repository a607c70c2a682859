"""The rows of a forward pass: token sequences padded to one length, or packed.

If the keys and values of a common prefix are known, rows hold only the tokens after the prefix.

In packed rows, several short sequences share a row, which reduces padding. The positions of each
sequence start at 0. From these positions `transformers` builds a block-diagonal mask, so tokens
attend only to their own sequence. A sequence's hidden states are therefore the same as in a
separate row, up to rounding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from samara.client.forward.trunk_cache import Ids
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.prefix_cache import Prefix


class Place(NamedTuple):
    """The place of a sequence in a pass.

    Attributes:
        row: index of the row in the pass.
        first: position of the sequence's first token in that row.
    """

    row: int
    first: int


def pack(lengths: Sequence[int]) -> list[Place]:
    """Pack sequences into rows as long as the longest sequence.

    The method is first fit, in order of decreasing length.

    Args:
        lengths: number of tokens of each sequence, at least one.

    Returns:
        The place of each sequence.
    """
    places = [Place(0, 0)] * len(lengths)
    used: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        free = (row for row, tokens in enumerate(used) if tokens + lengths[index] <= max(lengths))
        row = next(free, len(used))
        if row == len(used):
            used.append(0)
        places[index] = Place(row, used[row])
        used[row] += lengths[index]
    return places


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a pass, and the places of its m sequences in them.

    Attributes:
        ids: token ids, int64 [R, S], padded on the right; S is the length of the longest sequence.
        inputs: all other inputs of the body by name.
        places: place of each sequence.
        skipped: number of first tokens of each sequence that are not in the rows.
    """

    ids: Tensor
    inputs: dict[str, Any]
    places: Sequence[Place]
    skipped: int = 0

    @classmethod
    def of(cls, base: BaseModel, sequences: Sequence[Ids], packed: bool = False) -> "Rows":
        """Put sequences into rows.

        Args:
            base: model that reads the rows.
            sequences: m token sequences.
            packed: whether sequences may share a row if that saves rows.

        Raises:
            ModelError: if a sequence is longer than the model's context.
        """
        lengths = [len(sequence) for sequence in sequences]
        if max(lengths) > base.context:
            raise ModelError(
                f"{base.folder}: a sequence has {max(lengths)} tokens, but the model reads at most "
                f"{base.context}; lower model.max-length"
            )
        own = [Place(row, 0) for row in range(len(sequences))]
        places = pack(lengths) if packed else own
        count = 1 + max(place.row for place in places)
        if count == len(sequences):
            places = own
        # for such small tensors, numpy takes a tenth of the time that torch takes
        ids = np.full((count, max(lengths)), base.padding, np.int64)
        is_packed = count < len(sequences)
        of_tokens = np.arange(max(lengths)) if is_packed else np.ones(max(lengths), np.int64)
        beside = np.zeros_like(ids)
        for sequence, (row, first) in zip(sequences, places, strict=True):
            end = first + len(sequence)
            ids[row, first:end] = sequence
            beside[row, first:end] = of_tokens[: len(sequence)]
        device = base.network.device
        inputs = {"position_ids" if is_packed else "attention_mask": torch.from_numpy(beside)}
        return cls(
            torch.from_numpy(ids).to(device),
            {name: value.to(device) for name, value in inputs.items()},
            places,
        )

    @classmethod
    def after(cls, base: BaseModel, prefix: Prefix, sequences: Sequence[Ids]) -> "Rows":
        """Put the tokens that follow a common prefix into rows.

        Args:
            base: model that reads the rows.
            prefix: the prefix.
            sequences: m token sequences that begin with the prefix, and fit the context.
        """
        skipped = len(prefix.ids)
        rows = cls.of(base, [sequence[skipped:] for sequence in sequences])
        mask = nn.functional.pad(rows.inputs["attention_mask"], (skipped, 0), value=1)
        inputs = {"attention_mask": mask, "past_key_values": prefix.cache}
        return replace(rows, inputs=inputs, skipped=skipped)

    def repeat(self, times: int) -> "Rows":
        """Return these rows repeated a number of times, one complete copy after another."""
        inputs = {name: value.repeat(times, 1) for name, value in self.inputs.items()}
        return replace(self, ids=self.ids.repeat(times, 1), inputs=inputs)

    @property
    def are_packed(self) -> bool:
        """Return whether sequences share rows."""
        return len(self.ids) < len(self.places)

    def arrange(self, outputs: Iterable[Tensor]) -> Tensor:
        """Arrange outputs computed for separate sequences at their places in the rows.

        Args:
            outputs: each sequence's output, [length, hidden].

        Returns:
            [R, S, hidden], zero outside of sequences.
        """
        if not self.are_packed:
            return nn.utils.rnn.pad_sequence(list(outputs), batch_first=True)
        whole: Tensor | None = None
        for output, (row, first) in zip(outputs, self.places, strict=True):
            if whole is None:
                whole = output.new_zeros(*self.ids.shape, output.shape[1])
            whole[row, first : first + len(output)] = output
        assert whole is not None
        return whole

    def indices(
        self, supervised: Sequence[Sequence[int]], perturbations: int
    ) -> tuple[Tensor, Tensor]:
        """Return the row and position of each token to read, int64 [n] each.

        Args:
            supervised: positions to read in each sequence.
            perturbations: number P of copies of all rows.
        """
        places = [Place(row, first - self.skipped) for row, first in self.places]
        return self._indices(places, len(self.ids), supervised, perturbations)

    def own_indices(
        self, supervised: Sequence[Sequence[int]], perturbations: int
    ) -> tuple[Tensor, Tensor]:
        """Return the row and position of each token to read if no sequences shared rows.

        Args:
            supervised: positions to read in each sequence.
            perturbations: number P of copies of all rows.
        """
        own = [Place(row, 0) for row in range(len(self.places))]
        return self._indices(own, len(own), supervised, perturbations)

    def _indices(
        self,
        places: Sequence[Place],
        count: int,
        supervised: Sequence[Sequence[int]],
        perturbations: int,
    ) -> tuple[Tensor, Tensor]:
        index = [
            (row, first + position)
            for (row, first), positions in zip(places, supervised, strict=True)
            for position in positions
        ]
        rows, positions = np.array(index, np.int64).T
        all_rows = (np.arange(perturbations)[:, None] * count + rows).ravel()
        all_positions = np.tile(positions, perturbations)
        device = self.ids.device
        return torch.from_numpy(all_rows).to(device), torch.from_numpy(all_positions).to(device)
