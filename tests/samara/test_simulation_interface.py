"""The Python interface: runs, frames, comparisons, models, and errors with the command's text."""

import doctest
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import LOADED

import samara
from samara.overrides import config_of, settings_of
from samara.shared.settings.config import RunConfig
from samara.simulations.experiments.experiments import parse_seeds
from samara.simulations.simulate import simulate as simulate_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> samara.Run:
    """A finished run of three clients on generated messages, with adapters inside the model."""
    return samara.simulate(
        {
            "rounds": 1,
            "adapter": {"layers": "top:1", "label-bias": False},
            "data.clients": 3,
            "batch": 8,
        },
        personal={"rounds": 1, "learning_rate": 0.1},
        evaluate={"limit": 20},
        learning_rate=0.1,
        steps=1,
        queries=2,
        threads=1,
        out=tmp_path_factory.mktemp("runs") / "first",
    )


@pytest.mark.parametrize(
    "module",
    ["samara", "samara.models", "samara.overrides", "samara.register", "samara.simulation"],
)
def test_examples_in_docstrings_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failed, attempted = doctest.testmod(import_module(module))
    assert not failed
    assert attempted


@pytest.mark.parametrize("module", ["samara.tuning", "samara.estimates"])
def test_examples_of_tuning_and_estimates_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failed, attempted = doctest.testmod(import_module(module))
    assert not failed
    assert attempted


def test_what_the_interface_offers_stands_in_an_example() -> None:
    modules = ("samara", "samara.estimates", "samara.models", "samara.simulation", "samara.tuning")
    found = [test for name in modules for test in doctest.DocTestFinder().find(import_module(name))]
    code = "".join(example.source for test in found for example in test.examples)
    offered = {"simulate", "tune", "device_estimate"}
    for kind in (samara.Run, samara.Runs, samara.Model, samara.TuningRun):
        offered |= {name for name, value in vars(kind).items() if callable(value)}
    offered = {name for name in offered if not name.startswith("_")}
    assert offered > {"to_frame", "compare", "global_model", "personal_model", "intervals"}
    missing = {name for name in offered if f"{name}(" not in code}
    assert missing == {"to_peft"}  # needs the extra samara-fl[peft]


def test_settings_are_those_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("rounds = 3\n[data]\nclients = 5\n")
    ways = [
        config_of(file, {"learning_rate": 0.1, "data": {"alpha": 0.3}}),
        config_of(str(file), {"learning-rate": 0.1, "data.alpha": 0.3}),
        config_of({"rounds": 3, "data.clients": 5}, {"learning_rate": 0.1, "data": {"alpha": 0.3}}),
        config_of(
            RunConfig.of({"rounds": 3, "data.clients": 5}, ""),
            {"learning_rate": 0.1, "data.alpha": 0.3},
        ),
    ]
    assert all(config == ways[0] for config in ways)
    assert (ways[0].rounds, ways[0].data.clients, ways[0].data.alpha) == (3, 5, 0.3)
    assert settings_of({"model": {"path": tmp_path}}) == {"model.path": str(tmp_path)}


def test_a_run_is_that_of_the_command(run: samara.Run, tmp_path: Path) -> None:
    config = run.config.model_copy(update={"out": str(tmp_path / "again")})
    again = samara.Run(simulate_config(config))
    assert again.result.final_digest == run.result.final_digest
    assert "all digests agree" in str(run)
    assert repr(run) == f"samara.Run({str(run.folder)!r})"


def test_nothing_is_printed_where_nobody_looks(settings: dict[str, Any], tmp_path: Path) -> None:
    code = f"import samara; samara.simulate({settings | {'rounds': 1, 'evaluate.limit': 4}!r})"
    done = subprocess.run(
        [sys.executable, "-c", LOADED + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_pandas_a_frame_says_what_to_install(
    run: samara.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(samara.SamaraError, match=r"pip install 'samara-fl\[pandas\]'"):
        run.to_frame()


def test_a_frame_has_a_row_per_client_and_model(run: samara.Run) -> None:
    frame = run.to_frame()
    names = ["client", "model", "examples", "accuracy", "macro_f1", "loss", "auc"]
    assert list(frame.columns) == names
    assert set(frame["client"]) == {0, 1, 2}
    assert {"zero-shot", "global", "personalized"} <= set(frame["model"])
    own = run.result.evaluations[-1].columns["global"].clients[1]
    row = frame[(frame["client"] == 1) & (frame["model"] == "global")].iloc[0]
    assert (row["accuracy"], row["examples"]) == (own.accuracy, own.examples)


def test_every_model_of_two_labels_has_an_auc(run: samara.Run) -> None:
    columns = run.result.evaluations[-1].columns
    areas = {name: [one.auc for one in own.clients.values()] for name, own in columns.items()}
    assert areas["zero-shot"] == pytest.approx(areas["label bias"])
    assert set(areas["base rate"]) == {0.5}
    assert columns["global"].mean_client_auc == pytest.approx(np.mean(areas["global"]))
    assert columns["global"].auc is None
    assert f"{columns['global'].mean_client_auc:.3f}" in str(run)


def test_a_comparison_is_that_of_the_command(run: samara.Run, tmp_path: Path) -> None:
    from samara.simulations.comparison.comparison import compare_runs

    comparison = run.compare()
    assert comparison.answer() == compare_runs([run.folder]).answer()
    assert comparison.answer() in " ".join(str(comparison).split())
    frame = comparison.to_frame()
    assert list(frame["difference"]) == [row.quality.mean for row in comparison.tested]
    page = comparison.save_page(tmp_path / "page.html")
    assert comparison.headline() in page.read_text(encoding="utf-8")
    with pytest.raises(samara.SamaraError, match="cannot be written"):
        comparison.save_page(tmp_path / "missing" / "page.html")


def test_seeds_give_intervals(run: samara.Run, tmp_path: Path) -> None:
    runs = samara.simulate(run.config, seeds=[0, 1], out=tmp_path / "seeds")
    assert [each.folder for each in runs] == [tmp_path / "seeds" / f"seed-{i}" for i in (0, 1)]
    assert runs[0].result.final_digest == run.result.final_digest
    own = runs.intervals()["global"]
    first, second = own.by_seed[0], own.by_seed[1]
    assert own.mean == pytest.approx((first + second) / 2)
    # Student's t with one degree of freedom: 12.706 standard errors, each half the difference.
    assert own.high - own.mean == pytest.approx(12.706 * abs(first - second) / 2, rel=1e-4)
    assert set(runs.to_frame()["seed"]) == {0, 1}
    assert "95 % interval" in str(runs)
    assert len(runs.compare().runs.variants[0].runs) == 2
    assert math.isnan(runs[:1].intervals()["global"].low)
    with pytest.raises(samara.SamaraError, match="each seed only once"):
        samara.simulate({}, seeds=[1, 1])
    with pytest.raises(samara.SamaraError, match="--seeds 0;1: not a list of seeds"):
        parse_seeds("0;1")


def test_models_answer_and_are_peft_models(run: samara.Run, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    texts = ["what a day", "so much rain"]
    shared, personal = run.global_model(), run.personal_model(1)
    assert not np.array_equal(shared.numbers, personal.numbers)
    for own in personal.probabilities(texts):
        assert sum(own.values()) == pytest.approx(1)
    assert personal.predict(texts[0]) == personal.predict(texts)[:1]
    model = personal.to_peft()
    assert isinstance(model, peft.PeftModel)
    weights = [tensor for name, tensor in model.named_parameters() if "lora_B" in name]
    flat = np.concatenate([tensor.detach().numpy().ravel() for tensor in weights])
    assert np.array_equal(np.sort(flat), np.sort(personal.numbers))
    folder = personal.save(tmp_path / "personal")
    assert (folder / "adapter_model.safetensors").exists()
    assert "personal model of client 1" in repr(personal)
    with pytest.raises(samara.SamaraError, match="there is no client '9'"):
        run.personal_model(9)


@pytest.mark.parametrize(
    ("trained", "advice"),
    [
        (
            {"adapter.layers": "readout"},
            "adapter.layers = top:1 and adapter.label-bias = false",
        ),
        (
            {"adapter.layers": "readout,top:2"},
            "adapter.layers = top:2 and adapter.label-bias = false",
        ),
        (
            {"adapter.layers": "readout", "adapter.label-bias": True, "method": "readout"},
            "adapter.layers = top:1 and adapter.label-bias = false and method = finetune",
        ),
        ({"adapter.layers": "top:1", "adapter.label-bias": True}, "adapter.label-bias = false"),
    ],
)
def test_a_readout_and_a_label_bias_are_no_peft_model(
    trained: dict[str, Any], advice: str, settings: dict[str, Any]
) -> None:
    """The error names the settings that would make it one."""
    run = samara.simulate(settings | trained | {"rounds": 1, "evaluate.limit": 4})
    model = run.global_model()
    assert set(model.probabilities("the film was good")[0]) == {"terrible", "great"}
    with pytest.raises(
        samara.SamaraError, match=f"PEFT cannot represent a .*, or train with {advice}$"
    ):
        model.to_peft()
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scenario": "nowhere"}, "neither a scenario file nor a shipped scenario"),
        ({"scenario": "sst2"}, "model.path"),
        (
            {"scenario": {"data": {"client": 2}}},
            "data.client: there is no such setting; did you mean",
        ),
        ({"scenario": {}, "rounds": 0}, "rounds: Input should be greater than or equal to 1"),
        ({"scenario": {"data.clients": 2}, "learning_rate": 1, "learning-rate": 2}, "given twice"),
        ({"scenario": {}, "out": "/proc/nowhere"}, "results cannot be written there"),
    ],
)
def test_mistakes_are_errors_with_the_words_of_the_command(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(samara.SamaraError, match=said):
        samara.simulate(**settings)


def test_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(samara.SamaraError, match="has the run ended"):
        samara.Run(tmp_path).to_frame()
    with pytest.raises(samara.SamaraError, match="read: No such file or directory; has the run"):
        samara.TuningRun(tmp_path).to_frame()


def test_a_tuning_run_has_a_curve(settings: dict[str, Any], tmp_path: Path) -> None:
    keys = ("model.path", "data.path", "task", "adapter.layers")
    run = samara.tune(
        {key: settings[key] for key in keys},
        steps=2,
        validate_every=1,
        batch=4,
        data={"train": 20, "validation": 10, "test": 10},
        learning_rate=0.1,
        out=tmp_path / "tuned",
    )
    assert list(run.to_frame()["step"]) == [0, 1, 2]
    assert "zero-shot" in str(run)
    assert run.folder == tmp_path / "tuned"


def test_an_estimate_has_the_time_until_a_target() -> None:
    estimate = samara.device_estimate({}, "orin-nano-8gb", target="+3", adapter={"layers": "top:1"})
    assert estimate.target is not None
    assert estimate.target.points == 3
    with pytest.raises(samara.SamaraError, match="gained at most"):
        samara.device_estimate({}, "orin-nano-8gb", target=50)
