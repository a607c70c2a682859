"""An adapter in a GGUF file changes llama.cpp's model like Samara's, or is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_gguf import gguf, write_model

from benchmarks.accuracy.llama_cpp import write_float32
from samara.client.personal.model_folder import TrainedModel
from samara.shared.errors import ModelError
from samara.shared.model.gguf_adapter import GGUF_ADAPTER_FILE, MODELFILE, write_gguf_adapter
from samara.shared.model.loading import BaseModel, load_base_model
from samara.shared.model.lora_fa import inject
from samara.shared.model.merge import merge_adapter
from samara.shared.protocol.layout import Layout
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import AdapterSettings

IDS = torch.tensor([[2, 7, 8, 9, 3]])
ALL = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


@pytest.fixture
def file(tmp_path: Path, empty_cache: None) -> Path:
    write_model(tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def trained(base: BaseModel, projections: str = ALL) -> tuple[Layout, NDArray[np.float32]]:
    """Return the layout of an adapter in all layers, and random numbers for it."""
    settings = AdapterSettings(layers="all", projections=projections, rank=3, alpha=5.0)
    layout = inject(base, settings, 2).layout
    return layout, np.random.default_rng(1).normal(0, 0.5, layout.size).astype(np.float32)


def logits(base: BaseModel) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = base.network(input_ids=IDS).logits
    return result


def products_of(adapter: Path) -> dict[str, NDArray[np.float32]]:
    """Return the product of an adapter's factors for each weight, scaled like in llama.cpp."""
    read = gguf.GGUFReader(adapter)
    parts = {tensor.name: np.array(tensor.data) for tensor in read.tensors}
    alpha = read.get_field("adapter.lora.alpha").contents()
    weights = {name.rpartition(".")[0] for name in parts}
    products = {}
    for name in weights:
        a, b = (parts.pop(f"{name}.lora_{part}") for part in "ab")
        products[name] = (alpha / len(a) * (b @ a)).astype(np.float32)
    assert not parts
    return products


def test_an_adapter_on_the_files_own_tensors_gives_the_same_logits(
    file: Path, tmp_path: Path
) -> None:
    base = load_base_model(str(file))
    layout, numbers = trained(base)
    base = load_base_model(str(file))
    plain = logits(base)
    write_gguf_adapter(base, file, layout, numbers, tmp_path / "out")
    merge_adapter(base, layout, numbers)
    merged = tmp_path / "merged.gguf"
    products = products_of(tmp_path / "out" / GGUF_ADAPTER_FILE)
    assert products.keys() <= {tensor.name for tensor in gguf.GGUFReader(file).tensors}
    write_float32(file, merged, products)
    theirs = logits(load_base_model(str(merged)))
    assert torch.allclose(theirs, logits(base), atol=1e-4)
    assert not torch.allclose(theirs, plain, atol=0.1)


def test_an_adapter_says_which_model_it_is_for(file: Path, tmp_path: Path) -> None:
    base = load_base_model(str(file))
    layout, numbers = trained(base)
    write_gguf_adapter(load_base_model(str(file)), file, layout, numbers, tmp_path / "out")
    fields = gguf.GGUFReader(tmp_path / "out" / GGUF_ADAPTER_FILE).fields
    kept = {name: field.contents() for name, field in fields.items()}
    assert kept["general.type"] == "adapter"
    assert kept["adapter.type"] == "lora"
    assert kept["general.architecture"] == "llama"
    assert kept["adapter.lora.alpha"] == 5.0
    lines = (tmp_path / "out" / MODELFILE).read_text().splitlines()
    assert lines == [f"FROM {file.resolve()}", f"ADAPTER ./{GGUF_ADAPTER_FILE}"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("other weights", "differs from layers.0.self_attn.q_proj"),
        ("damaged", "this GGUF file is damaged .*; download it again"),
        ("missing", "No such file"),
        ("architecture", "does not know the architecture"),
    ],
)
def test_another_file_is_refused(file: Path, tmp_path: Path, change: str, message: str) -> None:
    base = load_base_model(str(file))
    layout, numbers = trained(base)
    base = load_base_model(str(file))
    other = tmp_path / "other.gguf"
    if change == "other weights":
        write_model(other, seed=1)
    elif change == "architecture":
        other.write_bytes(file.read_bytes().replace(b"llama", b"lxama"))
    elif change == "damaged":
        other.write_bytes(b"GGUF" + file.read_bytes()[4:40])
    with pytest.raises(ModelError, match=message):
        write_gguf_adapter(base, other, layout, numbers, tmp_path / "out")


@pytest.mark.parametrize("layers", ["readout", "readout,top:1"])
def test_a_readout_is_refused(file: Path, tmp_path: Path, layers: str) -> None:
    settings: dict[str, Any] = {"model.path": str(file), "task": "sst2", "adapter.layers": layers}
    config = RunConfig.of(settings, "test")
    base = load_base_model(str(file))
    layout = inject(base, config.adapter, 2).layout
    model = TrainedModel(config, layout, base.model_id, np.zeros(layout.size, np.float32), "A.")
    with pytest.raises(ModelError, match=r"llama\.cpp does not compute a readout"):
        model.write_gguf(tmp_path / "out", file)
    assert not (tmp_path / "out").exists()
