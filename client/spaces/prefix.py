"""Prefix tuning: m keys and values per layer that every token attends to, in causal LMs.

Li & Liang, "Prefix-tuning: optimizing continuous prompts for generation" (2021), as MeZO uses it
(appendix E.5): the prefix begins as what random tokens of the vocabulary give when the model reads
them, and is trained as it is, without reparameterization. It reaches the model as a cache, as if
those tokens had been read before, so positions count on behind it.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from client.spaces.space import FlatSpace, SequentialSpace, SpaceTensor, no_adapter
from shared.directions import Distribution, prefix_tokens
from shared.errors import ModelError
from shared.model.loading import BaseModel
from shared.model.lora_fa import PerturbedAdapters
from shared.replay import Backend


class PrefixSpace(FlatSpace, SequentialSpace):
    """Keys and values of the prefix, layer by layer, each [heads, m, features of a head].

    θ is float32; the model sees it rounded to its compute type. It begins with what the model
    computes, so its last bits depend on the machine.

    Attributes:
        tokens: that it begins as.

    Args:
        base: a causal LM.
        length: m, tokens of the prefix.
        seed: of the tokens.
        backend: draws directions.
        distribution: of the directions.

    Raises:
        ModelError: if the model is no causal LM, keeps something else than keys and values of all
            tokens, or has too short a context.
    """

    kind = "prefix"
    portable = False

    def __init__(
        self,
        base: BaseModel,
        length: int,
        seed: int,
        backend: Backend,
        distribution: Distribution = "gaussian",
    ) -> None:
        if base.family != "causal":
            raise ModelError(
                f"{base.folder}: a prefix needs a causal LM and this is a {base.family} model; "
                "choose another space"
            )
        if not 0 < length < base.context:
            raise ModelError(
                f"{base.folder}: a prefix of {length} tokens does not fit a context of "
                f"{base.context}"
            )
        self._base, self._length = base, length
        self.tokens = tokens_of_prefix(base, length, seed)
        activations = _activations(base, self.tokens)
        names = [f"layers.{i}.{part}" for i in range(len(activations) // 2) for part in ("k", "v")]
        tensors = [
            SpaceTensor(name, tuple(tensor.shape))
            for name, tensor in zip(names, activations, strict=True)
        ]
        adapter, self._here = no_adapter()
        theta = torch.cat([tensor.float().reshape(-1) for tensor in activations])
        super().__init__(tensors, adapter, theta, backend, distribution)

    def _sides(self, seed: int, epsilon: float) -> Generator[PerturbedAdapters]:
        for theta in self._around(seed, epsilon):
            with self._read_before(theta):
                yield self._here

    @contextmanager
    def _center(self) -> Iterator[PerturbedAdapters]:
        with self._read_before(self._theta):
            yield self._here

    @contextmanager
    def _read_before(self, theta: Tensor) -> Iterator[None]:
        """Inside, whatever the body reads comes behind this prefix."""
        sizes = [tensor.size for tensor in self.tensors]
        prefix = [
            flat.view(1, *tensor.shape).to(self._base.network.dtype)
            for tensor, flat in zip(self.tensors, torch.split(theta, sizes), strict=True)
        ]

        def prepend(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            rows, length = (args[0] if args else kwargs["input_ids"]).shape
            if kwargs.get("past_key_values") is not None:
                raise ModelError(
                    f"{self._base.folder}: the model has a cache already and a prefix takes its "
                    "place; run whole sequences"
                )
            if self._length + length > self._base.context:
                raise ModelError(
                    f"{self._base.folder}: a sequence of {length} tokens does not fit behind a "
                    f"prefix of {self._length}: the model reads at most {self._base.context}; "
                    "lower model.max-length"
                )
            kwargs["past_key_values"] = _cache(prefix, rows)
            if (mask := kwargs.get("attention_mask")) is not None:
                kwargs["attention_mask"] = nn.functional.pad(mask, (self._length, 0), value=1)
            return args, kwargs

        handle = self._base.body.register_forward_pre_hook(prepend, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def tokens_of_prefix(base: BaseModel, length: int, seed: int) -> list[int]:
    """Random tokens of a model's vocabulary, none of them special."""
    special = set(base.tokenizer.all_special_ids)
    real = sorted(set(base.tokenizer.get_vocab().values()) - special)
    real = [token for token in real if token < base.network.config.vocab_size]
    return [real[place] for place in prefix_tokens(seed, length, len(real))]


@torch.inference_mode()
def _activations(base: BaseModel, tokens: list[int]) -> list[Tensor]:
    """Keys and values, layer by layer, of a model that reads some tokens: [heads, m, features]."""
    cache = _cache([], 1)
    ids = torch.tensor([tokens], device=base.network.device)
    base.body(input_ids=ids, past_key_values=cache, use_cache=True)
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    if len(cache.layers) != len(base.blocks) or any(
        part is None or part.ndim != 4 or part.shape[::2] != (1, len(tokens)) for part in parts
    ):
        raise ModelError(
            f"{base.folder}: its layers do not keep keys and values of all tokens; "
            "a prefix cannot be put before it, choose another space"
        )
    return [part[0].clone() for part in parts]


def _cache(prefix: list[Tensor], rows: int) -> Any:
    """A cache that holds keys and values [1, heads, m, features] for so many rows."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer in range(len(prefix) // 2):
        keys, values = (part.expand(rows, -1, -1, -1) for part in prefix[2 * layer :][:2])
        cache.update(keys, values, layer)
    return cache
