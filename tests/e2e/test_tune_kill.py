"""A tuning process that is killed repeatedly gives the result of an undisturbed process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ROOT
from tuning import small, tuned, tuning_of

from samara.shared.storage.events import read_events


def command(settings: dict[str, object], out: Path) -> list[str]:
    pairs = [f"{key}={value}" for key, value in settings.items() if key not in ("out", "optimizer")]
    assignments = [part for pair in pairs for part in ("--set", pair)]
    method = ["--optimizer", str(settings["optimizer"]), "--out", str(out)]
    return [sys.executable, "-m", "samara", "tune", *method, *assignments]


def started(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def killed_at(arguments: list[str], line_begins: str) -> None:
    """Run a command until it prints a line with this beginning, then kill it with `kill -9`."""
    process = started(arguments)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(line_begins):
            process.kill()
            break
    process.stdout.close()
    assert process.wait() == -9, "".join(said)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "space"),
    [
        ("mezo-adam", "full"),
        ("fo-adam", "full"),
        ("zero-offload", "full"),
        ("lora", "lora"),
        ("lsp", "linear"),
    ],
)
def test_killed_runs_come_to_the_same_result(
    method: str, space: str, model_folder: Callable[[str], Path], data_file: Path, tmp_path: Path
) -> None:
    settings = small(model_folder("causal"), data_file, tmp_path)
    settings |= {"optimizer": method, "space": space, "steps": 120, "validate-every": 4}
    if method == "lsp":
        settings |= {"lsp.subspace-size": 8, "lsp.nonzeros": 2, "lsp.check-frequency": 7}
    settings["learning-rate"] = 0.001
    broken = tmp_path / "broken"
    for place in ("zero-shot, validation", "step 8,"):
        killed_at(command(settings, broken), place)
        assert not (broken / "result.json").exists()
    assert len(read_events(broken / "metrics.jsonl")) >= 4
    whole = tuned(tuning_of(settings, out=str(tmp_path / "whole")))
    assert tuned(tuning_of(settings, out=str(broken))) == whole
