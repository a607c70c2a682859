"""Loading and identifying a frozen base model from a folder or the Hugging Face hub."""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from samara.shared.errors import ModelError
from samara.shared.machine.process import silence_libraries
from samara.shared.model.checkpoint import CheckpointEntry, load_outside_blocks, load_quantized
from samara.shared.model.completeness import check_complete, fill_unused
from samara.shared.model.depth import blocks_at, cut_config, cut_id, is_above
from samara.shared.model.model_folder import check_files, find_model_folder, model_id
from samara.shared.model.optional_imports import triton_hidden
from samara.shared.model.products import use_faster_products
from samara.shared.model.quantized import Quantization, check_quantization, quantize_tables
from samara.shared.model.sentence_pooling import SentencePooling, load_pooling
from samara.shared.model.structure import (
    Family,
    blocks_of,
    body_of,
    creating_network,
    detect_family,
    loader_for,
)
from samara.shared.model.tokenizer import load_tokenizer

silence_libraries()  # transformers imports the noisy libraries when it loads a model

_IDS: dict[int, int] = {}
"""One integer object per token id, shared by all texts to save memory."""

ORIGINAL_LENGTH = "original_max_position_embeddings"
"""Rotary parameter: the number of tokens after which `longrope` rotates by other frequencies."""
Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class BaseModel:
    """A frozen model with its tokenizer.

    Attributes:
        folder: folder from which the model was read.
        model_id: hash of config, weight and tokenizer files, 32 bytes.
        family: family of the model, which decides the scoring of labels.
        network: transformers model in evaluation mode, on its torch device.
        tokenizer: fast tokenizer of the model.
        pooling: pooling and further modules of a sentence encoder; unused in other families.
        quantization: quantization of the linear layers in the blocks; see `load_base_model`.
        depth: number of loaded blocks of a cut model; 0 for a whole model.
        verdicts: results of self-checks, shared by all `BaseModel` objects of one model in this
            process.
    """

    folder: Path
    model_id: bytes
    family: Family
    network: Any
    tokenizer: Any
    pooling: SentencePooling = field(default_factory=SentencePooling)
    quantization: Quantization = "none"
    depth: int = 0
    verdicts: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def copy_sharing_weights(self) -> "BaseModel":
        """Return a copy with the same weights and separate modules, for use in another thread."""
        weights = [*self.network.parameters(), *self.network.buffers()]
        settings = [own.config for own in self.network.modules() if hasattr(own, "config")]
        shared = {id(each): each for each in (*weights, *settings)}
        return replace(self, network=copy.deepcopy(self.network, shared))

    @cached_property
    def context(self) -> int:
        """The largest number of tokens in a sequence."""
        config = self.network.config.get_text_config()
        limit: int = getattr(config, "max_position_embeddings", None) or sys.maxsize
        if limit < 0:  # XLNet, for example, uses −1 for no limit
            limit = sys.maxsize
        for name, module in self.body.named_modules():
            if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
                reserved = 0 if module.padding_idx is None else module.padding_idx + 1
                limit = min(limit, module.num_embeddings - reserved)
        return limit

    @property
    def rotations_by_length(self) -> list[dict[str, Any]]:
        """The rotary parameters whose frequencies depend on the longest sequence of a pass."""
        config = self.network.config.get_text_config()
        parameters = getattr(config, "rope_parameters", None) or {}
        by_kind_of_layer = [one for one in parameters.values() if isinstance(one, dict)]
        types = [(str(one.get("rope_type")), one) for one in by_kind_of_layer or [parameters]]
        return [one for kind, one in types if "dynamic" in kind or kind == "longrope"]

    @property
    def batch_context(self) -> int:
        """The largest number of tokens of a sequence that runs beside others.

        A longer sequence would change the rotation of the others. A `dynamic` rotation changes
        only beyond `context`.
        """
        rotations = [one for one in self.rotations_by_length if one["rope_type"] == "longrope"]
        lengths: list[int] = [one[ORIGINAL_LENGTH] for one in rotations]
        return min([self.context, *lengths])

    @property
    def features(self) -> int:
        """The size of a representation: a hidden state or, for an encoder, a sentence vector."""
        size = self.hidden_size
        return self.pooling.size(size) if self.family == "encoder" else size

    @property
    def hidden_size(self) -> int:
        """The size of a last hidden state."""
        return _hidden_size(self.network)

    def token_ids(self, text: str, special: bool = False) -> tuple[int, ...]:
        """Tokenize a text.

        Args:
            text: text to tokenize.
            special: whether the tokenizer adds its special tokens.

        Raises:
            ModelError: if the text has a token without an embedding in the model.
        """
        found = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        ids = tuple(_IDS.setdefault(token, token) for token in found)
        if ids and max(ids) >= self.vocabulary:
            token = self.tokenizer.convert_ids_to_tokens(max(ids))
            raise ModelError(
                f"{self.folder}: the tokenizer's token {token!r} has the number {max(ids)}, but "
                f"the model has only {self.vocabulary} token embeddings; use this model's "
                "tokenizer, or resize the model's embeddings (resize_token_embeddings) and save it"
            )
        return ids

    @property
    def vocabulary(self) -> int:
        """The number of tokens with an embedding in the model."""
        embeddings = self.network.get_input_embeddings()
        size: int | None = getattr(embeddings, "num_embeddings", None)
        return size or int(self.network.config.get_text_config().vocab_size)

    @property
    def padding(self) -> int:
        """The id of the tokenizer's padding token, or 0 if this token has no embedding."""
        token: int = self.tokenizer.pad_token_id or 0
        return token if token < self.vocabulary else 0

    @property
    def body(self) -> nn.Module:
        """The part below the head: the innermost model that holds all blocks.

        This is usually transformers' ``base_model``. For OPT, it is the decoder inside
        ``base_model``, because OPT's head calls the decoder directly.
        """
        return body_of(self.network)

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks, lowest first.

        Raises:
            ModelError: if the body has no list of equal blocks.
        """
        return blocks_of(self.body, self.folder)


def _hidden_size(network: Any) -> int:
    """Return the size of a last hidden state; OPT projects it to the size of its embeddings."""
    config = network.config.get_text_config()
    size: int = getattr(config, "word_embed_proj_dim", None) or config.hidden_size
    return size


def load_base_model(
    path: str,
    family: Family | Literal["auto"] = "auto",
    device: str = "cpu",
    quantization: Quantization = "none",
    dtype: Dtype = "float32",
    depth: str = "",
) -> BaseModel:
    """Load a model with all parameters frozen.

    Args:
        path: folder written by `save_pretrained`, GGUF file, name on the Hugging Face hub, or
            `EMBEDDED_MODEL`.
        family: causal, masked or encoder; auto detects the family.
        device: torch device of the model.
        quantization: quantization of the linear layers in the blocks. A quantized model is loaded
            tensor by tensor, and never completely in full precision.
        dtype: compute type, and the type of tensors that are not quantized.
        depth: number or share of the lowest blocks to load; empty for all.

    Raises:
        ModelError: if the folder is missing, incomplete or damaged, or if quantization fails
            because bitsandbytes is unusable.
    """
    torch_device = check_torch_device(device)

    def network(folder: Path, known_family: Family, blocks: int) -> Any:
        kind = getattr(torch, dtype)
        return _network(folder, known_family, quantization, kind, torch_device, blocks)

    return _load(path, family, torch_device, quantization, depth, network)


def load_without_blocks(
    path: str,
    family: Family | Literal["auto"] = "auto",
    device: str = "cpu",
    quantization: Quantization = "none",
    dtype: Dtype = "float32",
    depth: str = "",
) -> tuple[BaseModel, list[dict[str, CheckpointEntry]]]:
    """Load a model without its blocks; the blocks' parameters stay on the meta device.

    Args:
        path: as in `load_base_model`.
        family: as in `load_base_model`.
        device: as in `load_base_model`.
        quantization: quantization that the caller will apply to the blocks' linear layers.
        dtype: as in `load_base_model`.
        depth: as in `load_base_model`.

    Returns:
        The model, and for each block a dictionary from a parameter's name in the block to its
        checkpoint entry.

    Raises:
        ModelError: as in `load_base_model`, and if the checkpoint is not in safetensors files.
    """
    entries: list[dict[str, CheckpointEntry]] = []

    def network(folder: Path, known_family: Family, count: int) -> Any:
        empty = _empty(folder, known_family, getattr(torch, dtype), count)
        blocks = blocks_of(body_of(empty), folder)
        placed = check_torch_device(device)
        entries.extend(load_outside_blocks(empty, blocks, folder, placed, is_cut=count > 0))
        empty.config.use_cache = False
        return empty

    torch_device = check_torch_device(device)
    return _load(path, family, torch_device, quantization, depth, network), entries


def check_torch_device(name: str) -> torch.device:
    """Return the torch device with a name, after checking that torch can use it.

    Raises:
        ModelError: if this build of torch, or this machine, lacks the device.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"model.torch-device = {name}: torch cannot use this device here ({reason}); set "
            "model.torch-device = cpu"
        ) from error
    return device


@triton_hidden()
def _load(
    path: str,
    family: Family | Literal["auto"],
    device: torch.device,
    quantization: Quantization,
    depth: str,
    network_of: Callable[[Path, Family, int], Any],
) -> BaseModel:
    folder = find_model_folder(path)
    blocks = blocks_at(depth, folder)
    known_family = detect_family(folder) if family == "auto" else family
    if quantization != "none":
        check_quantization(device)
    check_files(folder)
    tokenizer = load_tokenizer(folder)
    try:
        network = network_of(folder, known_family, blocks)
    except ModelError:
        raise
    except Exception as error:  # transformers raises errors of many types
        raise ModelError(
            f"{folder}: cannot be loaded as a model of family {known_family}: {error}"
        ) from error
    network.eval().requires_grad_(False)
    if quantization != "none":
        quantize_tables(network)
    use_faster_products(network)
    pooling = _pooling(folder, known_family, network).to(device)
    identity = cut_id(model_id(folder), blocks)
    verdicts = _verdicts_of(identity, known_family, quantization, network.dtype, device)
    return BaseModel(
        folder, identity, known_family, network, tokenizer, pooling, quantization, blocks, verdicts
    )


@cache
def _verdicts_of(*_: object) -> dict[Any, Any]:
    """Return the dictionary of `BaseModel.verdicts` that belongs to the arguments."""
    return {}


def load_structure(
    path: str, family: Family | Literal["auto"] = "auto", depth: str = ""
) -> BaseModel:
    """Load a model without weights and tokenizer, for the names and shapes of its modules.

    Args:
        path: as in `load_base_model`.
        family: as in `load_base_model`.
        depth: as in `load_base_model`.

    Raises:
        ModelError: if the folder is missing or incomplete.
    """
    folder = find_model_folder(path)
    blocks = blocks_at(depth, folder)
    known_family = detect_family(folder) if family == "auto" else family
    try:
        network = _empty(folder, known_family, torch.float32, blocks)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder}: config.json cannot be used: {error}") from error
    pooling = _pooling(folder, known_family, network)
    identity = cut_id(model_id(folder), blocks)
    return BaseModel(folder, identity, known_family, network, None, pooling, depth=blocks)


def _pooling(folder: Path, family: Family, network: Any) -> SentencePooling:
    return load_pooling(folder, _hidden_size(network)) if family == "encoder" else SentencePooling()


def _network(
    folder: Path,
    family: Family,
    quantization: Quantization,
    dtype: torch.dtype,
    device: torch.device,
    blocks: int,
) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if quantization == "none":
        settings = _config(folder, blocks)
        with creating_network:
            network, found = loader_for(settings, family).from_pretrained(
                folder,
                config=settings,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # check_complete names them in an error
            )
        unexpected = found["unexpected_keys"]
        if blocks:
            is_cut_off = is_above(network, _cut_blocks(network, folder, blocks))
            unexpected = [name for name in unexpected if not is_cut_off(name)]
        misshapen = {name: (tuple(own), tuple(new)) for name, own, new in found["mismatched_keys"]}
        missing = found["missing_keys"]
        check_complete(network, folder, missing, unexpected, misshapen)
        fill_unused(network, [*missing, *misshapen])
        network.to(device)
    else:
        network = _empty(folder, family, dtype, blocks)
        own = blocks_of(body_of(network), folder)
        load_quantized(network, own, folder, quantization, device, is_cut=blocks > 0)
    network.config.use_cache = False
    return network


def _empty(folder: Path, family: Family, dtype: torch.dtype, blocks: int) -> Any:
    """Create the network of a model folder with its parameters on the meta device."""
    network = empty_network(_config(folder, blocks), family, dtype)
    if blocks:
        _cut_blocks(network, folder, blocks)
    return network


def _config(folder: Path, blocks: int) -> Any:
    """Return the transformers configuration, cut to the lowest blocks if `blocks` is set."""
    import transformers

    settings = transformers.AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    if blocks:
        cut_config(settings, blocks)
    return settings


def _cut_blocks(network: Any, folder: Path, blocks: int) -> nn.ModuleList:
    """Return the blocks of a cut network after checking their number.

    Raises:
        ModelError: if the network's class created another number of blocks.
    """
    own = blocks_of(body_of(network), folder)
    if len(own) != blocks:
        raise ModelError(
            f"{folder}: {type(network).__name__} cannot be cut to {blocks} blocks; set "
            "adapter.layers to readout"
        )
    return own


def empty_network(
    settings: Any, family: Family, dtype: torch.dtype, include_buffers: bool = False
) -> Any:
    """Create the network of a transformers configuration with its parameters on the meta device.

    Args:
        settings: configuration.
        family: model family.
        dtype: type of the parameters.
        include_buffers: whether the buffers, too, are on the meta device, where they have no
            values.
    """
    from accelerate import init_empty_weights

    with creating_network, init_empty_weights(include_buffers=include_buffers):
        return loader_for(settings, family).from_config(
            settings, dtype=dtype, trust_remote_code=False
        )
