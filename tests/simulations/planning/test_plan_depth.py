"""A run with default settings on a deep language model: its depth, messages and files."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Run
from federations import config_of
from safetensors import safe_open

from samara.client.training.model_runtime import load_run
from samara.shared.model.loading import load_base_model
from samara.shared.protocol.frames.instructions import Split
from samara.shared.settings.choices import with_overrides
from samara.shared.settings.config import RunConfig
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.planning.plan import describe_plan
from samara.simulations.project.baselines import describe_baselines
from samara.simulations.simulate import load_simulation, simulate

BLOCKS, READ = 12, 8
ModelFolder = Callable[..., Path]


@pytest.fixture(scope="module")
def config(
    tmp_path_factory: pytest.TempPathFactory, model_folder: ModelFolder, data_file: Path
) -> RunConfig:
    settings = {
        "model.path": str(model_folder("causal", BLOCKS)),
        "data.path": str(data_file),
        "data.clients": 2,
        "data.partition": "iid",
        "task": "sst2",
        "rounds": 3,
        "threads": 1,
        "out": str(tmp_path_factory.mktemp("run") / "run"),
    }
    return config_of(settings)


@pytest.fixture(scope="module")
def folder(config: RunConfig) -> Path:
    return simulate(config)


def plan_of(config: RunConfig, folder: Path) -> list[str]:
    runtime, source = load_run(config)
    shares = [source.share_of(client, config.data.clients) for client in range(config.data.clients)]
    return describe_plan(config, runtime, shares, folder)


def test_the_plan_of_empty_settings_says_that_the_texts_are_generated(
    config: RunConfig, tmp_path: Path
) -> None:
    lines = plan_of(RunConfig(), tmp_path)
    assert any(line.startswith("model: embedded, ") for line in lines)
    [note] = [line for line in lines if line.startswith("note: the texts are generated ")]
    assert "samara new DIR --data FILE --model MODEL" in note
    assert not any("generated" in line for line in plan_of(config, tmp_path))


def test_the_plan_says_what_is_trained_and_why(
    config: RunConfig, model_folder: ModelFolder, tmp_path: Path
) -> None:
    [trained] = [line for line in plan_of(config, tmp_path) if line.startswith("trained: ")]
    assert f"the state after block {READ} of {BLOCKS}; later blocks are not loaded" in trained
    assert "begins with all labels equally likely" in trained
    assert "two thirds" in trained.partition("Reason: ")[2]
    chosen = config.with_values({"adapter.layers": f"readout:{BLOCKS}"})
    assert "trained: weights on the last state" in plan_of(chosen, tmp_path)
    others = {"adapter.layers": "top:1", "steps": 2, "queries": 2, "batch": 4}
    inner = config_of(with_overrides(config.flat(), others))
    assert not any(line.startswith("trained: ") for line in plan_of(inner, tmp_path))


def test_the_plan_says_how_long_a_board_trains(config: RunConfig, tmp_path: Path) -> None:
    others = {"adapter.layers": "top:1", "steps": 2, "queries": 2, "batch": 4}
    inner = config_of(with_overrides(config.flat(), others))
    [line] = [line for line in plan_of(inner, tmp_path) if line.startswith("on a Jetson")]
    assert "for the 6 steps of a client" in line
    more = config_of(inner.flat(), rounds=3000)
    [longer] = [line for line in plan_of(more, tmp_path) if line.startswith("on a Jetson")]
    assert "for the 6,000 steps of a client" in longer
    assert line.split(" for ")[0] != longer.split(" for ")[0]


def test_the_exported_model_ends_where_the_readout_reads(
    config: RunConfig, folder: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    code, printed, _ = run("adapter", "export", folder, "--out", out, "--form", "merged")
    assert (code, f"The model is in {out}") == (0, printed.strip().splitlines()[-1])
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == READ
    with safe_open(out / "readout.safetensors", "pt") as file:
        weight, bias, about = file.get_tensor("weight"), file.get_tensor("bias"), file.metadata()
    assert about["blocks"] == str(READ)
    runtime, source = load_run(config)
    prompts = source.share_of(0, 2).tokenized(Split.TEST).prompts[:5]
    exported = load_base_model(str(out))
    assert weight.any()
    for prompt, expected in zip(
        prompts, runtime.scores(FinishedRun.at(folder).global_state(), prompts), strict=True
    ):
        ids = torch.tensor([prompt.sequences[0]])
        with torch.inference_mode():
            state = exported.body(ids).last_hidden_state[0, prompt.supervised[0][0]]
        np.testing.assert_allclose((weight @ state + bias).numpy(), expected, atol=2e-4)


def test_a_cut_model_has_no_zero_shot_answers_to_compare_with(config: RunConfig) -> None:
    for layers, is_said in (("readout:auto", False), ("readout", True)):
        loaded = load_simulation(config.with_values({"adapter.layers": layers}))
        lines = describe_baselines(loaded.runtime, loaded.shares)
        assert any("most frequent label" in line for line in lines)
        said = [line for line in lines if line.startswith("zero-shot: ")]
        assert [bool(re.search(r"%\), AUC 0\.\d{3} \(independent", line)) for line in said] == [
            True
        ] * is_said
