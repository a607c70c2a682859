"""Prefix tuning: m keys and values per layer that every token attends to, in causal LMs.

Li & Liang, "Prefix-tuning: optimizing continuous prompts for generation" (2021), as MeZO uses it
(appendix E.5): the prefix is initialized with the keys and values of random tokens of the
vocabulary, or with random numbers, and is trained without reparameterization. The model is given it
as a cache, as if those tokens had been read before, so the positions of a sequence start behind it.
"""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from client.spaces.space import FlatSpace, SequentialSpace, SpaceTensor
from shared.directions import Distribution, prefix_tokens
from shared.errors import ModelError
from shared.model.loading import BaseModel
from shared.model.lora_fa import PerturbedAdapters, empty_adapter
from shared.replay import Backend

DEFAULT_SPREAD = 0.02
"""Standard deviation of random initial values where a model's configuration has none."""


class PrefixSpace(FlatSpace, SequentialSpace):
    """The space of a prefix's keys and values, layer by layer, each [heads, m, features of a head].

    θ is float32 and is rounded to the model's compute type for a forward pass. Its initial values
    are computed by the model, so their last bits depend on the machine.

    Attributes:
        tokens: ids of the tokens whose keys and values are the initial θ.

    Args:
        base: a causal LM.
        length: number m of tokens in the prefix.
        seed: seed of the tokens.
        backend: backend that draws directions.
        distribution: distribution of the directions.
        random_start: whether θ begins as random numbers instead.

    Raises:
        ModelError: if the model is no causal LM, its cache is not keys and values of all tokens,
            or its context is too short.
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
        random_start: bool = False,
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
        self.tokens = draw_prefix_tokens(base, length, seed)
        activations = _compute_activations(base, self.tokens)
        names = [f"layers.{i}.{part}" for i in range(len(activations) // 2) for part in ("k", "v")]
        tensors = [
            SpaceTensor(name, tuple(tensor.shape))
            for name, tensor in zip(names, activations, strict=True)
        ]
        adapter, self._no_adapters = empty_adapter()
        theta = torch.cat([tensor.float().reshape(-1) for tensor in activations])
        super().__init__(tensors, adapter, theta, backend, distribution)
        if random_start:  # of the size that the model's own weights began with
            spread = getattr(base.network.config, "initializer_range", DEFAULT_SPREAD)
            self._theta = self.direction(seed, 0, self.size) * spread
            self.portable = True

    def _perturbed(
        self, seed: int, epsilon: float, signs: tuple[int, ...]
    ) -> Generator[PerturbedAdapters]:
        for theta in self._sides(seed, epsilon, signs):
            with self.computing_with(theta) as adapters:
                yield adapters

    def _unperturbed(self) -> AbstractContextManager[PerturbedAdapters]:
        return self.computing_with(self._theta)

    @contextmanager
    def computing_with(self, theta: Tensor) -> Iterator[PerturbedAdapters]:
        """Prepend a prefix to every sequence that the body reads inside the context."""
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
                    f"{self._base.folder}: a prefix is passed to the model as its cache, and "
                    "the model was called with another one; run whole sequences"
                )
            if self._length + length > self._base.context:
                raise ModelError(
                    f"{self._base.folder}: a sequence of {length} tokens does not fit behind a "
                    f"prefix of {self._length}: the model reads at most {self._base.context}; "
                    "lower model.max-length"
                )
            kwargs["past_key_values"] = _make_cache(prefix, rows)
            if (mask := kwargs.get("attention_mask")) is not None:
                kwargs["attention_mask"] = nn.functional.pad(mask, (self._length, 0), value=1)
            return args, kwargs

        handle = self._base.body.register_forward_pre_hook(prepend, with_kwargs=True)
        try:
            yield self._no_adapters
        finally:
            handle.remove()


def draw_prefix_tokens(base: BaseModel, length: int, seed: int) -> list[int]:
    """Draw ids of tokens from a model's vocabulary, none of them special."""
    special = set(base.tokenizer.all_special_ids)
    ordinary = sorted(set(base.tokenizer.get_vocab().values()) - special)
    ordinary = [token for token in ordinary if token < base.network.config.vocab_size]
    return [ordinary[index] for index in prefix_tokens(seed, length, len(ordinary))]


@torch.inference_mode()
def _compute_activations(base: BaseModel, tokens: list[int]) -> list[Tensor]:
    """Compute the keys and values of some tokens, layer by layer, each [heads, m, features]."""
    cache = _make_cache([], 1)
    ids = torch.tensor([tokens], device=base.network.device)
    base.body(input_ids=ids, past_key_values=cache, use_cache=True)
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    if len(cache.layers) != len(base.blocks) or any(
        part is None or part.ndim != 4 or part.shape[::2] != (1, len(tokens)) for part in parts
    ):
        raise ModelError(
            f"{base.folder}: its cache does not hold the keys and values of all tokens, so "
            "the model cannot be given a prefix; choose another space"
        )
    return [part[0].clone() for part in parts]


def _make_cache(prefix: list[Tensor], rows: int) -> Any:
    """Return a cache that repeats keys and values [1, heads, m, features] for every row."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer in range(len(prefix) // 2):
        keys, values = (part.expand(rows, -1, -1, -1) for part in prefix[2 * layer :][:2])
        cache.update(keys, values, layer)
    return cache
