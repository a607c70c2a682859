"""Prefix tuning of language models: every token attends to m trained keys and values per layer.

Li & Liang, "Prefix-tuning: optimizing continuous prompts for generation" (2021), as in MeZO
(appendix E.5). The initial prefix is the keys and values of random tokens of the vocabulary, or
random numbers. Alternatively a network computes the prefix, and the network is trained. The model
receives the prefix as a cache, as if it had already read those tokens, so the positions of a
sequence start after it.
"""

from itertools import starmap
from typing import Any

import torch
from torch import Tensor, nn

from samara.client.spaces.prefix_network import PrefixNetwork
from samara.client.spaces.space import SharedPassSpace, SpaceTensor, layout_of
from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.prefix_cache import prepending_cache
from samara.shared.protocol.directions import Distribution, prefix_tokens
from samara.shared.protocol.replay import Backend

DEFAULT_SPREAD = 0.02
"""Standard deviation of random initial values if the model's configuration does not name one."""


class PrefixSpace(SharedPassSpace):
    """The space of a prefix's keys and values, layer by layer, each [heads, m, features of a head].

    θ is float32 and is rounded to the model's compute type for a forward pass. The model computes
    the initial values, so their last bits depend on the machine.

    Attributes:
        tokens: ids of the tokens whose keys and values are the initial θ.

    Args:
        base: a language model, whose body gets a hook.
        length: number m of tokens in the prefix.
        seed: seed of the tokens.
        backend: backend that draws directions.
        distribution: distribution of the directions.
        random_start: whether the initial θ is random, and not the keys and values of tokens.
        width: size of the hidden layer of a network that computes the keys and values. Then θ is
            the network's parameters, initially random. With 0, θ is the keys and values themselves.

    Raises:
        ModelError: if the model is not a language model, its cache does not hold the keys and
            values of all tokens, or its context is too short.
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
        width: int = 0,
    ) -> None:
        if base.family == "encoder":
            raise ModelError(
                f"{base.folder}: a prefix needs a language model and this is a sentence encoder; "
                "choose another space"
            )
        if not 0 < length < base.context:
            raise ModelError(
                f"{base.folder}: a prefix of {length} tokens does not fit a context of "
                f"{base.context}; shorten the prefix"
            )
        self._base, self._length = base, length
        self.tokens = draw_prefix_tokens(base, length, seed)
        activations = _compute_activations(base, self.tokens)
        self._shapes = [tuple(tensor.shape) for tensor in activations]
        self._network = PrefixNetwork(base.features, width, self._shapes) if width else None
        names = [f"layers.{i}.{part}" for i in range(len(activations) // 2) for part in ("k", "v")]
        tensors = list(starmap(SpaceTensor, zip(names, self._shapes, strict=True)))
        theta = torch.cat([tensor.float().reshape(-1) for tensor in activations])
        if self._network is not None:
            tensors = self._network.tensors
            theta = theta.new_zeros(sum(tensor.size for tensor in tensors))
        layout = layout_of(tensors, distribution)
        # With a prefix as cache, packed sequences would attend to each other.
        adapter = Adapter(layout, 0, packs=False)
        super().__init__(tensors, adapter, layout, theta, backend)
        if self._network is not None:
            self._theta = self._network.start(self.direction(seed, 0, self.size))
        elif random_start:  # as large as the model's initial weights
            spread = getattr(base.network.config, "initializer_range", DEFAULT_SPREAD)
            self._theta = self.direction(seed, 0, self.size) * spread
        self.portable = random_start or self._network is not None
        base.body.register_forward_pre_hook(self._prepend, with_kwargs=True)

    def keys_and_values(self, perturbations: PerturbedAdapters) -> list[Tensor]:
        """Return keys and values of P prefixes, layer by layer, each [P, heads, m, features]."""
        matrices = [perturbations.tensor(tensor.name) for tensor in self.tensors]
        if self._network is not None:
            return self._network.keys_and_values(matrices)
        return [
            matrix.view(-1, *shape) for matrix, shape in zip(matrices, self._shapes, strict=True)
        ]

    def _prepend(
        self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the body the prefixes of the rows' perturbations, if a pass uses the adapter."""
        perturbations = self.adapter.perturbations
        if perturbations is None:
            return args, kwargs
        length = (args[0] if args else kwargs["input_ids"]).shape[1]
        if kwargs.get("past_key_values") is not None:
            raise ModelError(
                f"{self._base.folder}: the model was called with a cache other than the "
                "prefix; run whole sequences"
            )
        if self._length + length > self._base.batch_context:
            raise ModelError(
                f"{self._base.folder}: a sequence of {length} tokens does not fit behind a "
                f"prefix of {self._length}: the model reads at most {self._base.batch_context}; "
                "lower model.max-length"
            )
        from transformers import DynamicCache

        dtype = self._base.network.dtype
        prefixes = [part.to(dtype) for part in self.keys_and_values(perturbations)]
        layers = DynamicCache(list(zip(prefixes[::2], prefixes[1::2], strict=True))).layers
        kwargs["past_key_values"] = prepending_cache(layers)
        if (mask := kwargs.get("attention_mask")) is not None:
            kwargs["attention_mask"] = self._mask_behind(mask)
        return args, kwargs

    def _mask_behind(self, mask: Tensor) -> Tensor:
        """Return the attention mask of padded sequences that follow the prefix.

        Args:
            mask: int64 [rows, S], 0 for padding.

        Returns:
            int64 [rows, m + S]. A masked LM does not query its cache's length, so its mask has the
            shape that its attention reads, [rows, 1, S, m + S].
        """
        whole = nn.functional.pad(mask, (self._length, 0), value=1)
        if self._base.family == "causal":
            return whole
        visible = whole.bool()[:, None, None].expand(-1, 1, mask.shape[1], -1)
        if self._base.network.config._attn_implementation != "eager":
            return visible
        hidden = torch.finfo(self._base.network.dtype).min
        return visible.new_zeros(visible.shape, dtype=self._base.network.dtype).masked_fill(
            ~visible, hidden
        )


def draw_prefix_tokens(base: BaseModel, length: int, seed: int) -> list[int]:
    """Draw ids of non-special tokens from a model's vocabulary."""
    special = set(base.tokenizer.all_special_ids)
    ordinary = sorted(set(base.tokenizer.get_vocab().values()) - special)
    ordinary = [token for token in ordinary if token < base.network.config.vocab_size]
    return [ordinary[index] for index in prefix_tokens(seed, length, len(ordinary))]


@torch.inference_mode()
def _compute_activations(base: BaseModel, tokens: list[int]) -> list[Tensor]:
    """Compute the keys and values of m tokens, layer by layer, each [heads, m, features]."""
    from transformers import DynamicCache

    cache = DynamicCache()
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
