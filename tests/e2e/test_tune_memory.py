"""`samara tune` on an emulated accelerator whose memory is too small for Adam's states."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

from samara.shared.model.loading import load_base_model
from samara.shared.settings.sections import EMBEDDED_MODEL

pytestmark = pytest.mark.slow


def tune(method: str, memory: int, out: Path) -> "subprocess.CompletedProcess[str]":
    """Take two steps on the embedded model, training all of its numbers."""
    drawn = ("data.train=16", "data.validation=8", "data.test=8")
    sizes = ["--steps", "2", *(word for pair in ("batch=4", *drawn) for word in ("--set", pair))]
    settings = ("micro-batch=2", "threads=1", f"offload.memory={memory}")
    return subprocess.run(
        [
            *(sys.executable, "-m", "samara", "tune", "--optimizer", method, "--space", "full"),
            *(*sizes, "--out", str(out)),
            *(part for setting in settings for part in ("--set", setting)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_model_trains_whose_weights_and_states_exceed_the_memory(tmp_path: Path) -> None:
    network = load_base_model(EMBEDDED_MODEL).network
    weights = sum(weight.nbytes for weight in network.parameters())
    memory = weights * 5 // 2  # weights and moments are three times the weights
    resident = tune("fo-adam", memory, tmp_path / "resident")
    assert resident.returncode == 1
    assert "Traceback" not in resident.stderr
    message = " ".join(resident.stderr.split())
    assert f"the emulated accelerator's memory of {memory / 2**20:,.1f} MiB is too small" in message
    assert "offload (--optimizer lsp or zero-offload), or raise the limit" in message
    assert not (tmp_path / "resident" / "result.json").exists()

    offloaded = tune("zero-offload", memory, tmp_path / "offloaded")
    assert offloaded.returncode == 0, offloaded.stderr
    result = json.loads((tmp_path / "offloaded" / "result.json").read_text())
    assert weights < result["emulated"]["peak_memory_bytes"] <= memory
    assert result["curve"][0]["loss"] != result["curve"][-1]["loss"]
