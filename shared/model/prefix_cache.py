"""Keys and values of the first tokens of texts, which the model reads only once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samara.shared.model.loading import BaseModel
from samara.shared.model.word_tokens import Ids


@dataclass(frozen=True, eq=False)
class Prefix:
    """The tokens with which all sequences of a pass begin, and their keys and values.

    Attributes:
        ids: the tokens.
        cache: result of `prepending_cache`.
    """

    ids: Ids
    cache: Any


def read_prefix(base: BaseModel, ids: Ids) -> Prefix | None:
    """Run a model over tokens, and return their keys and values.

    Returns:
        The prefix; None if the model has a cache of another kind, such as a sliding window or a
        recurrent state.
    """
    from transformers.cache_utils import DynamicLayer

    output = base.body(input_ids=torch.tensor([ids], device=base.network.device), use_cache=True)
    layers = getattr(getattr(output, "past_key_values", None), "layers", [])
    if not layers or any(type(layer) is not DynamicLayer for layer in layers):
        return None
    return Prefix(ids, prepending_cache(layers))


def prepending_cache(layers: Sequence[Any]) -> Any:
    """Return a cache that prepends keys and values to those of a pass, and stores nothing.

    The rows of a pass are ordered by prefix. Some bodies repeat the rows for every perturbation
    only in their first block, so a layer finds the number of rows from its keys.

    Args:
        layers: layers of a `DynamicCache`, with keys and values of P prefixes.
    """
    from transformers import DynamicCache

    class PrefixCache(DynamicCache):  # type: ignore[misc]
        def update(
            self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
        ) -> tuple[Tensor, Tensor]:
            prefix = self.layers[layer]
            times = len(keys) // len(prefix.keys)
            return (
                torch.cat([prefix.keys.repeat_interleave(times, 0), keys], dim=-2),
                torch.cat([prefix.values.repeat_interleave(times, 0), values], dim=-2),
            )

    cache = PrefixCache()
    cache.layers = list(layers)
    return cache
