"""`samara adapter export --gguf` writes the weights of PEFT's format in llama.cpp's row order."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tiny_gguf import gguf
from tuning import Settings, small, tuning_of
from typer.testing import CliRunner

from samara.client.tuning.run import tune
from samara.command import app
from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.gguf_adapter import GGUF_ADAPTER_FILE
from samara.shared.model.loading import load_base_model
from samara.simulations.exports.tuned_export import export_tuned

PLACES = {"q": "attn_q", "k": "attn_k", "v": "attn_v"}


@pytest.fixture
def settings(model_folder: Callable[[str], Path], data_file: Path, tmp_path: Path) -> Settings:
    return small(model_folder("causal"), data_file, tmp_path / "run")


def interleaved(weight: NDArray[np.float32], head: int) -> NDArray[np.float32]:
    """Return the rows of q or k in the order in which llama.cpp stores them."""
    halves = weight.reshape(-1, 2, head // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf_of(folder: Path, out: Path) -> int:
    """Write the attention of a Llama as GGUF; return the size of a head."""
    network: Any = load_base_model(str(folder)).network
    config = network.config
    head: int = config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(out, "llama")
    for block, layer in enumerate(network.model.layers):
        for name, place in PLACES.items():
            weight = getattr(layer.self_attn, f"{name}_proj").weight.detach().numpy()
            kept = weight if name == "v" else interleaved(weight, head)
            writer.add_tensor(f"blk.{block}.{place}.weight", kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return head


@pytest.mark.parametrize("space", ["lora", "lora-fa"])
def test_a_tuned_adapter_is_that_of_peft_in_another_order(
    space: str, settings: Settings, tmp_path: Path
) -> None:
    settings["adapter.projections"] = "q_proj,k_proj,v_proj"
    file, out = tmp_path / "model.gguf", tmp_path / "exported"
    head = write_gguf_of(Path(settings["model.path"]), file)
    folder = tune(tuning_of(settings, optimizer="mezo", space=space, learning_rate=0.01))
    done = CliRunner().invoke(
        app, ["adapter", "export", str(folder), "--out", str(out), "--gguf", str(file)]
    )
    assert done.exit_code == 0, done.output
    assert f"--lora {out / GGUF_ADAPTER_FILE}" in done.output.replace("\n", "")
    export_tuned(folder, tmp_path / "peft")
    known = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    written = {
        tensor.name: tensor.data for tensor in gguf.GGUFReader(out / GGUF_ADAPTER_FILE).tensors
    }
    assert len(written) == len(known) > 0
    assert any(values.any() for name, values in known.items() if "q_proj.lora_B" in name)
    for name, values in known.items():
        block, letter = name.split("layers.")[1].split(".")[0], name.split("_proj")[0][-1]
        ours = written[
            f"blk.{block}.{PLACES[letter]}.weight.lora_{name.split('lora_')[1][0].lower()}"
        ]
        is_interleaved = letter in "qk" and "lora_B" in name
        np.testing.assert_array_equal(ours, interleaved(values, head) if is_interleaved else values)


def test_other_spaces_and_two_forms_are_refused(settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write_gguf_of(Path(settings["model.path"]), file)
    folder = tune(tuning_of(settings, optimizer="mezo", space="prefix", learning_rate=0.05))
    with pytest.raises(ModelError, match="loads only low-rank adapters"):
        export_tuned(folder, tmp_path / "exported", file)
    assert not (tmp_path / "exported").exists()
    both = ["--gguf", str(file), "--form", "merged"]
    done = CliRunner().invoke(app, ["adapter", "export", str(folder), "--out", "x", *both])
    assert isinstance(done.exception, ConfigError)
    assert "give only one of --gguf and --form" in str(done.exception)
