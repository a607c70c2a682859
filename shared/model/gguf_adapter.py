"""Export of a low-rank adapter as a GGUF file, which llama.cpp and Ollama apply to a GGUF model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ModelError
from samara.shared.model.gguf_file import read_gguf
from samara.shared.model.loading import BaseModel
from samara.shared.model.low_rank_factors import low_rank_factors
from samara.shared.protocol.layout import Layout

GGUF_ADAPTER_FILE, MODELFILE = "adapter.gguf", "Modelfile"
_LEAST_COSINE = 0.9
"""Least cosine at which two weight matrices count as the same matrix, one of them quantized.

Two bits per weight give about 0.95.
"""

_Weight = NDArray[np.float32]


def write_gguf_adapter(
    base: BaseModel,
    model_file: Path,
    layout: Layout,
    numbers: NDArray[np.float32],
    folder: Path,
    trained_a: Sequence[NDArray[np.float32]] | None = None,
) -> None:
    """Write an adapter as ``adapter.gguf``, and a ``Modelfile`` for Ollama.

    llama.cpp reorders the rows of some weights, such as those of q and k for rotary positions. The
    function compares each adapted weight with the same weight in the file to find the order.

    Args:
        base: base model with its weights, not quantized.
        model_file: GGUF file of the base model, in any quantization.
        layout: layout of the adapter. It may contain no tensor outside the model except a label
            bias.
        numbers: trained numbers, float32 [d].
        folder: folder for the files, created if it is missing.
        trained_a: A of every adapted layer, float32 [r, in]; None for the frozen matrices.

    Raises:
        ModelError: if the layout or the file belongs to another model, or if the package gguf is
            missing or does not know the model's layers.
        OSError: if the folder cannot be written.
    """
    reader = read_gguf(model_file)
    import gguf

    architecture = str(reader.get_field(gguf.Keys.General.ARCHITECTURE).contents())
    layers = list(low_rank_factors(base, layout, numbers, trained_a))
    places = _places(base, model_file, architecture, [layer.name for layer in layers])
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    folder.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(folder / GGUF_ADAPTER_FILE, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, layout.alpha)
    for layer in layers:
        place = places[layer.name]
        order = _row_order(base, layer.module, tensors.get(place))
        if order is None:
            raise ModelError(
                f"{model_file}: the tensor {place} differs from {layer.name} of {base.folder}; "
                "give the GGUF file of the run's base model"
            )
        writer.add_tensor(f"{place}.lora_a", np.ascontiguousarray(layer.a))
        writer.add_tensor(f"{place}.lora_b", np.ascontiguousarray(layer.b[order]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    modelfile = f"FROM {model_file.resolve()}\nADAPTER ./{GGUF_ADAPTER_FILE}\n"
    (folder / MODELFILE).write_text(modelfile)


def gguf_use(model_file: Path, folder: Path) -> str:
    """Return the commands of llama.cpp and Ollama that use an exported adapter."""
    return (
        f"llama-cli -m {model_file} --lora {folder / GGUF_ADAPTER_FILE}, or "
        f"ollama create NAME -f {folder / MODELFILE}"
    )


def _places(
    base: BaseModel, model_file: Path, architecture: str, names: Sequence[str]
) -> Mapping[str, str]:
    """Return the name of each adapted layer's weight in a GGUF file, by layer name."""
    import gguf

    known = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in known:
        raise ModelError(
            f"{model_file}: the package gguf does not know the architecture {architecture!r}; "
            "install a newer version of gguf"
        )
    table = gguf.get_tensor_name_map(known[architecture], len(base.blocks))
    body = next(name for name, module in base.network.named_modules() if module is base.body)
    found = {name: table.get_name(f"{body}.{name}" if body else name) for name in names}
    if unknown := [name for name, place in found.items() if place is None]:
        raise ModelError(
            f"{model_file}: a GGUF file of {architecture} has no tensor for {unknown[0]}; adapt "
            "other layers (adapter.projections), or export the merged model"
        )
    return {name: f"{place}.weight" for name, place in found.items()}


def _row_order(base: BaseModel, module: Any, tensor: Any) -> NDArray[np.int64] | None:
    """Return the row order in which a module's weight equals a GGUF tensor, int64 [rows].

    The result is None if the weights differ in every known order.
    """
    from gguf.quants import dequantize

    if tensor is None:
        return None
    weight: _Weight = module.weight.detach().float().numpy()
    ours = weight.T if type(module).__name__ == "Conv1D" else weight
    theirs: _Weight = dequantize(tensor.data, tensor.tensor_type)
    if theirs.shape != ours.shape:
        return None
    for order in _row_orders(base, len(ours)):
        if _cosine(ours[order], theirs) >= _LEAST_COSINE:
            return order
    return None


def _row_orders(base: BaseModel, rows: int) -> list[NDArray[np.int64]]:
    """Return the row orders that llama.cpp uses: unchanged, and each head's halves interleaved."""
    config = base.network.config.get_text_config()
    heads: int = getattr(config, "num_attention_heads", None) or 1
    size: int = getattr(config, "head_dim", None) or base.hidden_size // heads
    orders = [np.arange(rows)]
    if size % 2 == 0 and rows % size == 0:
        orders.append(orders[0].reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(-1))
    return orders


def _cosine(one: _Weight, other: _Weight) -> float:
    norms = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(np.vdot(one, other)) / norms if norms else 0.0
