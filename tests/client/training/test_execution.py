"""Federations whose steps run in other ways: chosen by measurement, quantized, within a budget."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import config_of, ledger_of
from helpers import files_of
from safetensors.torch import load_file, save_file

from benchmarks.speed.step import Bench, StepBench
from benchmarks.speed.step import run as run_bench
from benchmarks.speed.whole_model_step import OPTIMIZERS
from samara.client.forward.grouping import GROUPINGS
from samara.server.store import replay_run
from samara.shared.errors import ConfigError, ModelError, SamaraError
from samara.shared.results.result import read_result
from samara.simulations.planning.run_size import clients_together
from samara.simulations.simulate import simulate

Settings = dict[str, Any]


def schedule_file(folder: Path) -> Path:
    (file,) = folder.glob("schedule-*.json")
    return file


def test_auto_is_recorded_and_kept_by_a_continued_run(settings: Settings, tmp_path: Path) -> None:
    first = simulate(config_of(settings, grouping="auto"))
    chosen = json.loads(schedule_file(first).read_text())
    assert chosen["grouping"] in GROUPINGS
    assert 1 <= chosen["micro_batch"] <= 4
    for client in read_result(first)["clients"].values():
        assert {key: client[key] for key in chosen} == chosen
    # The same run elsewhere, with what the first one decided and with something else.
    ledgers = []
    for name, schedule in (("same", chosen), ("other", chosen | {"grouping": "sequential"})):
        out = tmp_path / name
        out.mkdir()
        (out / schedule_file(first).name).write_text(json.dumps(schedule))
        folder = simulate(config_of(settings, grouping="auto", out=str(out)))
        client = read_result(folder)["clients"]["0"]
        assert client["grouping"] == schedule["grouping"]
        ledgers.append(ledger_of(folder))
    assert ledgers[0] == ledger_of(first)


def test_an_explicit_grouping_gives_the_same_ledger_every_time(
    settings: Settings, tmp_path: Path
) -> None:
    for grouping in GROUPINGS:
        first = simulate(config_of(settings, grouping=grouping, out=str(tmp_path / grouping)))
        again = simulate(config_of(settings, grouping=grouping, out=str(tmp_path / f"2{grouping}")))
        assert ledger_of(first) == ledger_of(again)


@pytest.mark.parametrize("layers", ["all", "top:1"])
def test_clients_side_by_side_change_nothing(
    layers: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients at once give the same public and private ledgers as one after another."""
    settings |= {"adapter.layers": layers, "personal.rounds": 2}
    folders = []
    for cores in (1, 3):
        for user in ("simulate", "planning.run_size"):
            monkeypatch.setattr(f"samara.simulations.{user}.cores", lambda cores=cores: cores)
        config = config_of(settings, out=str(tmp_path / str(cores)))
        assert clients_together(config) == cores
        folders.append(simulate(config))
    assert ledger_of(folders[0]) == ledger_of(folders[1])
    for client in range(3):
        file = Path("clients", str(client), "personal.ledger")
        private = [files_of(folder / file) for folder in folders]
        assert private[0] == private[1] != {}
    first, second = (
        [event["columns"] for event in read_result(folder)["evaluations"]] for folder in folders
    )
    assert first == second


def test_the_thread_count_is_no_part_of_a_runs_name(settings: Settings, tmp_path: Path) -> None:
    names = {
        read_result(simulate(config_of(settings, threads=threads, out=str(tmp_path / name))))[
            "run_id"
        ]
        for threads, name in ((1, "one"), (2, "two"))
    }
    assert len(names) == 1


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_a_federation_on_quantized_weights(quantization: str, settings: Settings) -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")
    folder = simulate(config_of(settings, model__quantization=quantization))
    assert len(list(replay_run(folder))) == 4
    client = read_result(folder)["clients"]["0"]
    assert (client["quantization"], client["dtype"]) == (quantization, "float32")


def test_a_memory_budget_cuts_the_micro_batch(settings: Settings) -> None:
    folder = simulate(config_of(settings, memory_budget=60_000))
    client = read_result(folder)["clients"]["0"]
    assert client["grouping"] == "both"
    assert 1 <= client["micro_batch"] < 4


def test_a_budget_that_fits_nothing_is_refused(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SamaraError, match="it cannot use the run's settings"):
        simulate(config_of(settings, memory_budget=10))
    assert re.search(r"memory-budget = 10: .* bytes beside the weights", caplog.text)


def test_a_trunk_on_disk_gives_the_same_ledger_again(settings: Settings, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    changes = {"trunk_cache_folder": str(cache), "adapter__layers": "top:1"}
    cold = simulate(config_of(settings, **changes))
    assert any(cache.iterdir())
    # Another run id, so that nothing is taken from the first trainer's memory.
    warm = simulate(config_of(settings, **changes, evaluate__every=0, out=str(tmp_path / "warm")))
    deltas = [
        [step.record.end_digest for step in replay_run(folder) if step.record]
        for folder in (cold, warm)
    ]
    assert deltas[0] == deltas[1]


def test_weights_that_are_not_finite_stop_the_run(settings: Settings, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(settings["model.path"], folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], torch.nan)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ModelError, match=r"numbers that are not finite, because its weights are damaged"
    ):
        simulate(config_of(settings, model__path=str(folder)))


def test_a_stopped_benchmark_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Bench.rows

    def stopped(bench: Bench, batch: int, length: int) -> list[dict[str, Any]]:
        if batch == 2:
            raise KeyboardInterrupt
        return rows(bench, batch, length)

    monkeypatch.setattr(Bench, "rows", stopped)
    settings = StepBench("llama-tiny", "none", "float32", "cpu", 2, (1, 2), (8,), "top:1", 2, 1, 0)
    run_bench(settings, tmp_path / "step.json")
    content = json.loads((tmp_path / "step.json").read_text())
    assert {row["B"] for row in content["rows"]} == {1}
    printed = capsys.readouterr().out
    assert (
        "size 2 of 2: 2 examples of 8 tokens\nstopped: the results of the earlier sizes" in printed
    )
    assert "sequential" in printed


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_the_step_benchmark_measures_every_way(quantization: Any, tmp_path: Path) -> None:
    if quantization != "none":
        pytest.importorskip("bitsandbytes", reason="needs the extra samara-fl[quantized]")
    settings = StepBench(
        shape="llama-tiny",
        quantization=quantization,
        dtype="float32",
        device="cpu",
        queries=2,
        batches=(1, 2),
        lengths=(8,),
        layers="top:1",
        rank=2,
        repetitions=1,
        threads=0,
    )
    run_bench(settings, tmp_path / "step.json")
    content = json.loads((tmp_path / "step.json").read_text())
    others = [f"{name}, all parameters" for name in ("mezo", *OPTIMIZERS)]
    others = others if quantization == "none" else []
    assert [(row["B"], row["grouping"]) for row in content["rows"]] == [
        (batch, name)
        for batch in (1, 2)
        for name in ("mezo", *others, "Adam, LoRA-FA", *GROUPINGS, "both, algorithm 1", "auto")
    ]
    for row in content["rows"]:
        assert row["seconds"] > 0
        assert row["peak_bytes"] > 0
    by_name = {row["grouping"]: row for row in content["rows"] if row["B"] == 2}
    assert by_name["mezo"]["ratio_to_mezo"] == 1
    assert by_name["sequential"]["peak_bytes"] < by_name["both"]["peak_bytes"]
    assert by_name["auto"]["decided"]["grouping"] in GROUPINGS
    with pytest.raises(ConfigError, match="cannot be written"):
        run_bench(settings, tmp_path / "nowhere" / "step.json")
