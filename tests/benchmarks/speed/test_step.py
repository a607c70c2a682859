"""The measurements without data: ``python -m benchmarks`` in a checkout."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from helpers import ROOT

from benchmarks.speed.shapes import random_base
from benchmarks.speed.step import Bench, StepBench


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of ``python -m benchmarks``."""
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_replay_prints_ratios_and_writes_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "replay.json"
    arguments = ("--adapter", "minilm-top2", "--seeds", 2, "--threads", 1, "--repetitions", 1)
    status, printed, errors = run("replay", *arguments, "--json", file)
    assert (status, errors) == (0, "")
    assert "× peers" in printed
    assert "2 seeds on 1 thread;" in printed
    rows = json.loads(file.read_text())
    keys = {"backend", "distribution", "d", "seeds", "threads"}
    keys |= {"work", "elements_per_second", "ratio_over_peer_loop"}
    assert all(set(row) == keys for row in rows)
    assert {(row["d"], row["seeds"], row["threads"]) for row in rows} == {(6144, 2, 1)}
    assert {"numpy", "numba", "torch"} <= {r["backend"] for r in rows if r["work"] == "replay"}
    (peer,) = (row for row in rows if row["work"] == "peer loop")
    assert peer["ratio_over_peer_loop"] == 1
    assert all(row["elements_per_second"] > 0 < row["ratio_over_peer_loop"] for row in rows)


def test_an_unknown_adapter_is_refused() -> None:
    status, _, errors = run("replay", "--adapter", "bert")
    assert status == 1
    assert "--adapter bert: there is no such adapter; use one of minilm-top2" in errors


def test_first_order_steps_are_measured_beside_zeroth_order() -> None:
    settings = StepBench("llama-tiny", "none", "float32", "cpu", 2, (2,), (8,), "all", 2, 1, 1)
    rows = {row["grouping"]: row for row in Bench(settings).rows(2, 8)}
    assert all(row["seconds"] > 0 < row["peak_bytes"] for row in rows.values())
    base = random_base("llama-tiny", "none", torch.float32, torch.device("cpu"))
    parameters = 4 * sum(parameter.numel() for parameter in base.network.parameters())
    peaks = {name: row["peak_bytes"] / parameters for name, row in rows.items()}
    assert peaks["mezo, all parameters"] < 1 <= peaks["SGD, all parameters"]
    assert peaks["Adam, all parameters"] >= peaks["SGD, all parameters"] + 1.9
    assert peaks["Adam, LoRA-FA"] < peaks["SGD, all parameters"]
