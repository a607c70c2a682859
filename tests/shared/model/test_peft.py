"""An exported adapter has the same logits in PEFT as in Samara."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import config_of
from peft_logits import IDS, theirs
from tiny_models import ARCHITECTURES, save_tokenizer

from samara.client.personal.private_rounds import personal_ledger
from samara.server.store import read_layout, replay_run
from samara.shared.errors import LedgerError, ModelError, SamaraError
from samara.shared.model.loading import load_base_model, load_structure
from samara.shared.model.lora_fa import inject
from samara.shared.model.peft import write_peft_adapter
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import to_float32
from samara.shared.results.result import read_result
from samara.shared.settings.runs import client_folder
from samara.shared.settings.sections import AdapterSettings
from samara.simulations.exports.adapter import export
from samara.simulations.simulate import simulate

ModelFolder = Callable[[str], Path]


def ours(folder: Path, numbers: np.ndarray, settings: AdapterSettings, **loading: Any) -> Any:
    base = load_base_model(str(folder), **loading)
    adapter = inject(base, settings, 2)
    with torch.inference_mode():
        plain = base.network(input_ids=IDS)[0]
        with adapter.using(Perturbations.from_arrays(adapter.layout, numbers)):
            return plain, base.network(input_ids=IDS)[0]


def exported(folder: Path, out: Path, settings: AdapterSettings) -> np.ndarray:
    base = load_structure(str(folder))
    layout = inject(load_base_model(str(folder)), settings, 2).layout
    numbers = np.random.default_rng(0).normal(0, 0.5, layout.size).astype(np.float32)
    write_peft_adapter(base, str(folder), layout, numbers, out)
    return numbers


@pytest.mark.parametrize("name", [*ARCHITECTURES, "Llama", "BERT", "encoder"])
def test_peft_gives_the_same_logits(name: str, tmp_path: Path, model_folder: ModelFolder) -> None:
    if name in ARCHITECTURES:
        family, build, _ = ARCHITECTURES[name]
        torch.manual_seed(0)
        folder = tmp_path / "model"
        folder.mkdir()
        build(save_tokenizer(folder, family)).save_pretrained(folder)
    else:
        folder = model_folder({"Llama": "causal", "BERT": "masked"}.get(name, name))
    settings = AdapterSettings(layers="top:2", rank=3, alpha=5.0)
    numbers = exported(folder, tmp_path / "adapter", settings)
    plain, expected = ours(folder, numbers, settings)
    assert (expected - plain).abs().max() > 1e-3
    torch.testing.assert_close(theirs(folder, tmp_path / "adapter"), expected, rtol=0, atol=2e-5)


def test_peft_on_a_quantized_base_gives_the_same_logits(
    tmp_path: Path, model_folder: ModelFolder
) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")
    from transformers import BitsAndBytesConfig

    folder, settings = model_folder("causal"), AdapterSettings(layers="all")
    numbers = exported(folder, tmp_path / "adapter", settings)
    four_bit = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    plain, expected = ours(folder, numbers, settings, quantization="nf4")
    assert (expected - plain).abs().max() > 1e-3
    found = theirs(folder, tmp_path / "adapter", quantization_config=four_bit)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * float(expected.abs().max()))


def simulated(model: Path, data: Path, out: Path, **changes: Any) -> Path:
    """Simulate two clients. In the names of changes, __ stands for a dot and _ for a hyphen."""
    settings: dict[str, Any] = {
        "model.path": str(model),
        "data.path": str(data),
        "data.clients": 2,
        "adapter.layers": "top:2",
        "adapter.label-bias": True,
        "rounds": 2,
        "steps": 2,
        "queries": 2,
        "batch": 4,
        "threads": 1,
        "personal.rounds": 2,
        "task": "sst2",
        "data.partition": "iid",
        "personal.learning-rate": 0.3,
        "learning-rate": 0.3,
        "out": str(out),
    }
    return simulate(config_of(settings, **changes))


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, model_folder: ModelFolder, data_file: Path
) -> Path:
    return simulated(model_folder("causal"), data_file, tmp_path_factory.mktemp("run") / "run")


def test_a_run_is_exported_globally_and_for_one_client(
    run: Path, tmp_path: Path, model_folder: ModelFolder
) -> None:
    layout = read_layout(run)
    *_, (_, state, _) = replay_run(run)
    result = read_result(run)
    config = config_of(result["config"])
    kept = personal_ledger(client_folder(config, bytes.fromhex(result["run_id"]), 1))
    *_, (_, personal, _) = verify_ledger(kept, layout)
    settings = AdapterSettings(layers="top:2", **{"label-bias": True})
    for client, whole in ((None, state), (1, state + personal)):
        out = tmp_path / str(client)
        left_out = export(run, client, out)
        numbers = to_float32(whole)
        place, _ = layout.tensor_slice("label bias")
        np.testing.assert_array_equal(left_out["label bias"], numbers[place])
        _, expected = ours(model_folder("causal"), numbers, settings)
        found = theirs(model_folder("causal"), out)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert not np.array_equal(state, state + personal)


@pytest.mark.parametrize("method", ["local", "ditto", "mixture", "partial"])
def test_every_method_s_own_model_is_exported(
    method: str,
    tmp_path: Path,
    model_folder: ModelFolder,
    data_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test replays the private ledger itself, and combines the states by the method's rule."""
    # Left to itself, a mixture may keep nothing of what a model of random numbers learned.
    monkeypatch.setattr(
        "samara.client.personal.private_rounds.choose_kept_share", lambda loss_of: 0.25
    )
    model, part = model_folder("causal"), "*1.self_attn.q_proj"
    folder = simulated(
        model, data_file, tmp_path / "run", method=method, personal__part=f"label bias, {part}"
    )
    result, layout = read_result(folder), read_layout(folder)
    w = np.zeros(layout.size, np.int64)
    if method != "local":
        *_, (_, w, _) = replay_run(folder)
    kept = personal_ledger(
        client_folder(config_of(result["config"]), bytes.fromhex(result["run_id"]), 1)
    )
    *_, (_, p, _) = verify_ledger(kept, layout)
    whole = w + p
    if method == "partial":
        whole = w.copy()
        (own,) = [t.name for t in layout.tensors if t.name.endswith("1.self_attn.q_proj")]
        for name in (own, "label bias"):
            place, _ = layout.tensor_slice(name)
            whole[place] = p[place]
    numbers = to_float32(whole)
    settings = AdapterSettings(layers="top:2", **{"label-bias": True})
    _, expected = ours(model, numbers, settings)
    left_out = export(folder, 1, tmp_path / "adapter")
    place, _ = layout.tensor_slice("label bias")
    np.testing.assert_array_equal(left_out["label bias"], numbers[place])
    found = theirs(model, tmp_path / "adapter")
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    _, common = ours(model, to_float32(w), settings)
    assert (found - common).abs().max() > 1e-4


def test_what_cannot_be_exported_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="client 7 does not exist: the run has 2 clients"):
        export(run, 7, tmp_path / "out")
    with pytest.raises(SamaraError, match="nothing: does not exist; give the folder of a run"):
        export(tmp_path / "nothing", None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    content = json.loads((copy / "result.json").read_text())
    content["model_id"] = "00" * 32
    (copy / "result.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="this is not the base model of the run"):
        export(copy, None, tmp_path / "out")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path, model_folder: ModelFolder) -> None:
    layout = inject(
        load_base_model(str(model_folder("causal"))), AdapterSettings(layers="top:1"), 2
    ).layout
    other = load_structure(str(model_folder("masked")))
    with pytest.raises(ModelError, match="the adapter belongs to another model"):
        write_peft_adapter(other, "x", layout, np.zeros(layout.size, np.float32), tmp_path / "out")
    assert not (tmp_path / "out").exists()
