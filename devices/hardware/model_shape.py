"""The shape of a model: the sizes of its matrices, read from its configuration alone."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samara.devices.hardware.built_in_shapes import BUILT_IN
from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.gguf_file import find_converted_folder
from samara.shared.model.model_folder import check_config
from samara.shared.settings.sections import lowest_blocks

if TYPE_CHECKING:
    from samara.shared.model.structure import Family

_INTO_ATTENTION = {
    *("q_proj", "k_proj", "v_proj", "query", "key", "value", "q_lin", "k_lin", "v_lin"),
    *("q", "k", "v", "query_key_value", "qkv_proj", "qkv", "c_attn", "Wqkv"),
}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Linear:
    """A linear layer of a transformer block.

    Attributes:
        inputs: number of input features.
        outputs: number of output features.
        adapted: whether LoRA-FA adapts the layer in an adapted block.
        positionwise: whether the layer comes after attention. In the last block, such a layer runs
            only at supervised positions.
    """

    inputs: int
    outputs: int
    adapted: bool
    positionwise: bool

    @property
    def weights(self) -> int:
        """The number of entries of the layer's matrix."""
        return self.inputs * self.outputs


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that decide the time and memory of a forward pass.

    Attributes:
        name: name used in messages.
        blocks: linear layers of each transformer block, lowest first.
        attention: total query features of all heads of a block.
        heads: number of attention heads of a block.
        hidden: features of the residual stream.
        vocabulary: number of tokens in the head; 0 without a head (sentence encoders).
        other_weights: number of parameters outside the blocks' linear layers; tied parameters count
            once.
        context: maximum tokens of a sequence; None if the configuration does not state it.
        family: family of the model.
        table_weights: number of `other_weights` that have 8 bits in a quantized model.
    """

    name: str
    blocks: tuple[tuple[Linear, ...], ...]
    attention: int
    heads: int
    hidden: int
    vocabulary: int
    other_weights: int
    context: int | None
    family: "Family" = "causal"
    table_weights: int = 0

    @property
    def block_weights(self) -> int:
        """The number of entries of all matrices in the blocks."""
        return sum(linear.weights for block in self.blocks for linear in block)

    def check_length(self, sequence: int) -> None:
        """Raise a ConfigError if a sequence is longer than the model's context."""
        if self.context is not None and sequence > self.context:
            raise ConfigError(
                f"{self.name}: the model reads at most {self.context} tokens, but --seq is "
                f"{sequence}; lower --seq"
            )

    def at(self, depth: str) -> "ModelShape":
        """Return the shape of the model without the blocks above a readout's depth.

        See `lowest_blocks`. The head of a truncated language model is never run.
        """
        count = lowest_blocks(depth, len(self.blocks), self.family)
        return replace(self, blocks=self.blocks[:count], vocabulary=0) if count else self


def model_shape(name_or_path: str) -> ModelShape:
    """Read a model's shape from its configuration, without weights.

    Args:
        name_or_path: a name in `BUILT_IN`, a Hugging Face model folder, its config.json, or a GGUF
            file.

    Raises:
        ModelError: if the name or file does not exist, or if the model's blocks differ, lack query
            and value projections, or contain sparsely used experts.
    """
    if name_or_path in BUILT_IN:
        return built_in_shape(name_or_path)
    folder = _folder(name_or_path)
    from samara.shared.model.structure import detect_family

    try:
        content = (folder / "config.json").read_bytes()
        return _shape_of_folder(folder, detect_family(folder), content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{name_or_path}: cannot read its config.json: {message}") from error


@lru_cache(maxsize=8)
def _shape_of_folder(folder: Path, family: "Family", _content: bytes) -> ModelShape:
    """Return the shape of a model from its folder and its configuration's content."""
    from samara.shared.model.depth import read_config

    return shape_of_config(read_config(folder), folder, family)


def built_in_shape(name: str) -> ModelShape:
    """Return the shape of a model in `BUILT_IN`, without loading a library."""
    config = BUILT_IN[name]
    return (opt_shape if "ffn_dim" in config else llama_shape)(name, config)


def llama_shape(name: str, config: dict[str, int]) -> ModelShape:
    """Return the shape of a Llama, or of a Qwen3, which additionally normalizes queries and keys.

    Args:
        name: name used in messages.
        config: configuration with the keys of transformers' LlamaConfig.
    """
    hidden = config["hidden_size"]
    wide = config["intermediate_size"]
    heads = config["num_attention_heads"]
    of_a_head = config.get("head_dim", hidden // heads)
    queries = heads * of_a_head
    keys = config["num_key_value_heads"] * of_a_head
    block = (
        Linear(hidden, queries, adapted=True, positionwise=False),
        Linear(hidden, keys, adapted=False, positionwise=False),
        Linear(hidden, keys, adapted=True, positionwise=False),
        Linear(queries, hidden, adapted=False, positionwise=True),
        Linear(hidden, wide, adapted=False, positionwise=True),
        Linear(hidden, wide, adapted=False, positionwise=True),
        Linear(wide, hidden, adapted=False, positionwise=True),
    )
    layers = config["num_hidden_layers"]
    vocabulary = config["vocab_size"]
    embeddings = 1 if config.get("tie_word_embeddings") else 2
    norms = (2 * layers + 1) * hidden + (2 * layers * of_a_head if "head_dim" in config else 0)
    return ModelShape(
        name=name,
        blocks=(block,) * layers,
        attention=queries,
        heads=heads,
        hidden=hidden,
        vocabulary=vocabulary,
        other_weights=embeddings * vocabulary * hidden + norms,
        context=config["max_position_embeddings"],
        table_weights=embeddings * vocabulary * hidden,
    )


def opt_shape(name: str, config: dict[str, int]) -> ModelShape:
    """Return the shape of an OPT, which ties embedding and head, and whose layers have biases.

    Args:
        name: name used in messages.
        config: configuration with the keys of transformers' OPTConfig.
    """
    hidden = config["hidden_size"]
    wide = config["ffn_dim"]
    block = (
        Linear(hidden, hidden, adapted=False, positionwise=False),
        Linear(hidden, hidden, adapted=True, positionwise=False),
        Linear(hidden, hidden, adapted=True, positionwise=False),
        Linear(hidden, hidden, adapted=False, positionwise=True),
        Linear(hidden, wide, adapted=False, positionwise=True),
        Linear(wide, hidden, adapted=False, positionwise=True),
    )
    layers = config["num_hidden_layers"]
    vocabulary = config["vocab_size"]
    context = config["max_position_embeddings"]
    of_a_block = (4 * hidden + wide + hidden) + 4 * hidden  # biases and two norms
    positions = (context + 2) * hidden
    return ModelShape(
        name=name,
        blocks=(block,) * layers,
        attention=hidden,
        heads=config["num_attention_heads"],
        hidden=hidden,
        vocabulary=vocabulary,
        other_weights=vocabulary * hidden + positions + layers * of_a_block + 2 * hidden,
        context=context,
        table_weights=vocabulary * hidden,
    )


def _folder(path: str) -> Path:
    folder = Path(path).expanduser()
    if folder.name == "config.json":
        folder = folder.parent
    if folder.suffix == ".gguf" and folder.is_file():
        folder = find_converted_folder(folder)
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(
            f"{path!r}: neither a built-in shape ({', '.join(BUILT_IN)}) nor a Hugging Face model "
            f"folder or its config.json; give one of these"
        )
    check_config(folder)
    return folder


def shape_of_config(config: Any, folder: Path, family: "Family") -> ModelShape:
    """Return the shape of the model that a transformers configuration describes.

    Raises:
        ModelError: as in `model_shape`.
    """
    import torch

    from samara.shared.model.layer_selection import adapted_layers, features, is_linear
    from samara.shared.model.loading import BaseModel, empty_network
    from samara.shared.model.quantized import token_tables
    from samara.shared.settings.sections import AdapterSettings

    text = config.get_text_config()
    if experts := next((key for key in _EXPERTS if (getattr(text, key, None) or 1) > 1), None):
        raise ModelError(
            f"{folder}: a token uses only some of the model's {getattr(text, experts)} experts; "
            f"choose a dense model"
        )
    network = empty_network(config, family, torch.float32, include_buffers=True)
    network.tie_weights()  # on the meta device, tied parameters start out separate
    base = BaseModel(folder, bytes(32), family, network, None)
    adapted = {id(layer) for layer in adapted_layers(base, AdapterSettings(layers="all")).values()}
    blocks = tuple(
        tuple(
            Linear(
                *features(module),
                id(module) in adapted,
                name.rpartition(".")[2] not in _INTO_ATTENTION,
            )
            for name, module in block.named_modules()
            if is_linear(module)
        )
        for block in base.blocks
    )
    head_features = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    in_blocks = sum(linear.weights for block in blocks for linear in block)
    tables = {id(table.weight): table.weight.numel() for table in token_tables(network)}
    return ModelShape(
        name=folder.name,
        blocks=blocks,
        attention=text.num_attention_heads * head_features,
        heads=text.num_attention_heads,
        hidden=text.hidden_size,
        vocabulary=0 if family == "encoder" else text.vocab_size,
        other_weights=sum(weight.numel() for weight in network.parameters()) - in_blocks,
        context=getattr(text, "max_position_embeddings", None),
        family=family,
        table_weights=sum(tables.values()),
    )
