"""Selection of the linear layers to adapt, by an adapter's settings."""

from torch import Tensor as TorchTensor
from torch import nn

from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.quantized import QuantizedLinear
from samara.shared.settings.sections import AdapterSettings

ADVICE = "adapter_projections"
"""Key in config.json under which a model's authors recommend linear layers to adapt."""
_QUERY_AND_VALUE = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("q_lin", "v_lin"),
    ("q", "v"),
    ("query_key_value",),
    ("qkv_proj",),
    ("c_attn",),
    ("Wqkv",),
)


def adapted_layers(base: BaseModel, settings: AdapterSettings) -> dict[str, nn.Module]:
    """Return the linear layers of the body that the settings select, by name.

    Raises:
        ModelError: if a named block does not exist, or if no layer matches. The message then names
            the candidates.
    """
    chosen = chosen_blocks(settings.inner_layers, len(base.blocks))
    if not chosen:
        return {}
    prefixes = {_name_of(base.body, base.blocks[index]): index for index in chosen}
    wanted = _advised_projections(base) if settings.projections == "auto" else settings.projections
    return _select_layers(base.body, prefixes, wanted, str(base.folder))


def chosen_blocks(layers: str, count: int) -> list[int]:
    """Return the indices of the blocks that a value of ``adapter.layers`` selects, ascending.

    Args:
        layers: the setting without the word `readout`, such as ``top:2``; empty for no block.
        count: number of blocks.

    Raises:
        ModelError: if a block does not exist.
    """
    if not layers:
        return []
    if layers == "all":
        return list(range(count))
    if layers.startswith("top:"):
        wanted = min(int(layers.removeprefix("top:")), count + 1)
        chosen = list(range(count - wanted, count))
    else:
        chosen = sorted({int(index) for index in layers.split(",")})
    if chosen[0] < 0 or chosen[-1] >= count:
        raise ModelError(
            f"adapter.layers = {layers}: the model has only {count} blocks, 0 to {count - 1}; "
            "select some of these"
        )
    return chosen


def _name_of(body: nn.Module, wanted: nn.Module) -> str:
    names: dict[int, str] = {id(module): name for name, module in body.named_modules()}
    return names[id(wanted)]


def features(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of input and output features of a linear layer or transformers Conv1D."""
    if isinstance(module, nn.Linear | QuantizedLinear):
        return module.in_features, module.out_features
    weight = module.weight
    assert isinstance(weight, TorchTensor)
    return weight.shape[0], weight.shape[1]


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a plain or quantized linear layer, or a transformers Conv1D."""
    return isinstance(module, nn.Linear | QuantizedLinear) or type(module).__name__ == "Conv1D"


def _advised_projections(base: BaseModel) -> str:
    advice = getattr(base.network.config, ADVICE, None)
    if advice is None:
        return "auto"
    if not isinstance(advice, list) or not all(isinstance(name, str) for name in advice):
        raise ModelError(
            f"{base.folder / 'config.json'}: {ADVICE} is {advice!r}, but must be a list of names; "
            "correct the file, or set adapter.projections"
        )
    return ",".join(advice)


def _select_layers(
    body: nn.Module, prefixes: dict[str, int], projections: str, folder: str
) -> dict[str, nn.Module]:
    linear = {
        name: module
        for prefix in prefixes
        for name, module in body.named_modules()
        if name.startswith(prefix + ".") and is_linear(module)
    }
    endings = {name.rpartition(".")[2] for name in linear}
    if projections == "auto":
        wanted = next((set(names) for names in _QUERY_AND_VALUE if endings >= set(names)), set())
    else:
        wanted = {name.strip() for name in projections.split(",")}
    if not wanted or wanted - endings:
        missing = ", ".join(sorted(wanted - endings)) or "query and value projections"
        raise ModelError(
            f"{folder}: the selected blocks have no linear layer called {missing}; set "
            f"adapter.projections to some of: {', '.join(sorted(endings))}"
        )
    return {name: module for name, module in linear.items() if name.rpartition(".")[2] in wanted}
