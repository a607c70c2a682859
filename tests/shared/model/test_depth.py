"""Models with only the lowest blocks loaded, and the states that a readout at this depth reads."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from crossed import crossed

from samara.client.forward.setup import make_scorer
from samara.client.streaming.loading import load_model
from samara.devices.hardware.model_shape import model_shape
from samara.shared.errors import ModelError
from samara.shared.model.loading import load_base_model, load_structure
from samara.shared.model.model_folder import model_id_of
from samara.shared.model.readout import representations
from samara.shared.model.scorers import HeadlessScorer
from samara.shared.settings.sections import AdapterSettings, ModelSettings, lowest_blocks
from samara.shared.tasks.catalog import load_task

pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")

ModelFolder = Callable[[str], Path]
FAMILIES = ("causal", "masked", "encoder")
WAYS: dict[str, dict[str, str]] = {
    "memory": {},
    "int8": {"quantization": "int8"},
    "streamed": {"stream": "disk"},
}
IDS = torch.tensor([[6, 7, 8, 9]])


def adapter(layers: str) -> AdapterSettings:
    return AdapterSettings.model_validate({"layers": layers}, by_alias=False, by_name=True)


@pytest.mark.parametrize(
    ("layers", "depth", "inner"),
    [
        ("readout", "", ""),
        ("readout:18", "18", ""),
        ("readout:2/3", "2/3", ""),
        ("readout:18,top:1", "18", "top:1"),
        ("readout:auto", "auto", ""),
        ("readout:auto,top:1", "auto", "top:1"),
        ("readout,4,5", "", "4,5"),
        ("all", "", "all"),
    ],
)
def test_layers_say_the_depth(layers: str, depth: str, inner: str) -> None:
    settings = adapter(layers)
    assert (settings.depth, settings.inner_layers) == (depth, inner)


@pytest.mark.parametrize(
    "layers", ["readout:", "readout:0", "readout:2/", "readout:-1", "readout:autos", "top:1:2"]
)
def test_a_depth_that_is_no_number_is_refused(layers: str) -> None:
    with pytest.raises(ValueError, match="layers"):
        adapter(layers)


@pytest.mark.parametrize(("family", "way"), crossed(FAMILIES, WAYS))
def test_blocks_above_are_not_loaded(family: str, way: str, model_folder: ModelFolder) -> None:
    folder = model_folder(family)
    given = {"path": str(folder), "stream": "off"} | WAYS[way]
    base = load_model(ModelSettings.model_validate(given, by_alias=False, by_name=True), "2").base
    assert len(base.blocks) == base.depth == base.network.config.num_hidden_layers == 2
    assert base.model_id == model_id_of(str(folder), "2/3") != model_id_of(str(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_representation_is_the_state_after_the_block(
    family: str, model_folder: ModelFolder
) -> None:
    whole, cut = (load_base_model(str(model_folder(family)), depth=d) for d in ("", "1"))
    with torch.inference_mode():
        states = whole.body(IDS, output_hidden_states=True).hidden_states
        expected = whole.body.norm(states[1]) if family == "causal" else states[1]
        assert torch.equal(cut.body(IDS).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("family", "count", "loaded"),
    [
        ("causal", 8, 0),
        ("causal", 11, 0),
        ("causal", 12, 8),
        ("causal", 30, 20),
        ("masked", 30, 0),
        ("encoder", 30, 0),
    ],
)
def test_the_automatic_depth_follows_from_family_and_blocks(
    family: str, count: int, loaded: int
) -> None:
    assert lowest_blocks("auto", count, family) == loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_the_automatic_depth_of_a_shallow_model_is_the_whole(
    family: str, model_folder: ModelFolder
) -> None:
    path = str(model_folder(family))
    assert load_base_model(path, depth="auto").depth == 0
    assert model_id_of(path, "auto") == model_id_of(path)
    assert model_shape(path).at("auto") == model_shape(path)


def test_a_deep_language_model_is_cut_where_it_is_loaded_and_where_it_is_estimated(
    model_folder: Callable[..., Path],
) -> None:
    path = str(model_folder("causal", 12))
    base = load_base_model(path, depth="auto")
    assert base.depth == len(base.blocks) == 8
    assert base.model_id == model_id_of(path, "auto") == model_id_of(path, "2/3")
    assert load_structure(path, depth="auto").model_id == base.model_id
    shape = model_shape(path).at("auto")
    assert (len(shape.blocks), shape.vocabulary) == (8, 0)


def test_as_many_blocks_as_there_are_is_the_whole_model(model_folder: ModelFolder) -> None:
    path = str(model_folder("causal"))
    assert load_structure(path, depth="3").model_id == load_structure(path).model_id
    assert load_structure(path, depth="1/1").depth == 0


@pytest.mark.parametrize("depth", ["4", "5/4"])
def test_more_blocks_than_there_are_is_refused(depth: str, model_folder: ModelFolder) -> None:
    with pytest.raises(ModelError, match=r"has 3 blocks; set a number from 1 to 3, or a share"):
        load_structure(str(model_folder("causal")), depth=depth)


def test_a_cut_language_model_finds_all_labels_as_likely(model_folder: ModelFolder) -> None:
    task = load_task("sst2")
    base = load_base_model(str(model_folder("causal")), depth="2")
    scorer = make_scorer(base, task, 32)
    assert isinstance(scorer, HeadlessScorer)
    prompts = [scorer.prompt("the film was good"), scorer.prompt("the day")]
    hidden, lengths = torch.randn(2, 9, base.hidden_size), torch.tensor([9, 8])
    assert not scorer.scores(hidden, lengths, prompts).any()
    assert representations(scorer, hidden, lengths, prompts).shape == (1, 2, base.features)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "unknown"}, "model type `unknown` but Transformers does not recognize"),
        ({"vocab_size": None}, "field 'vocab_size': .* expected int"),
        ({"torch_dtype": "banana", "dtype": None}, "no attribute 'banana'"),
    ],
)
def test_a_wrong_configuration_is_named(
    change: dict[str, object], reason: str, model_folder: ModelFolder, tmp_path: Path
) -> None:
    content = json.loads((model_folder("causal") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | change))
    (tmp_path / "model.safetensors").touch()
    for read in (partial(load_structure, family="causal", depth="auto"), model_shape):
        with pytest.raises(ModelError, match=rf"config.json: cannot be used: .*{reason}"):
            read(str(tmp_path))
