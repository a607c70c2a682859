"""An emulated arm64 processor: golden files, frames, replay, a ledger, and steps of `tune`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT
from tuning import small

from samara.client.tuning.trajectory import read_trajectory
from samara.client.tuning.zeroth_order import TRAJECTORY_FILE

ARM64 = ROOT / ".arm64"

REPLAY_WITH_NUMBA = """
import platform
import numpy as np
from samara.shared.protocol.replay import CoefficientBlock, replay
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.protocol.replay_numpy import NumpyBackend

assert platform.machine() == "aarch64"
start = np.arange(-5000, 5000, dtype=np.int64) * 2**40
block = CoefficientBlock(3, np.array([7, -123_456_789, 2**31 - 1], np.int32))
entries = [(np.array([1, 2**63, 2**64 - 1], np.uint64), block)]
for distribution in ("gaussian", "rademacher"):
    states = [replay(start, entries, distribution, b) for b in (NumbaBackend(1), NumpyBackend())]
    assert (states[0] == states[1]).all(), distribution
    assert (states[0] != start).any()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not (ARM64.is_dir() and shutil.which("qemu-aarch64-static")),
        reason="no Python for arm64 or no qemu-aarch64-static; see make test-arm64",
    ),
]


SCENARIO = """
rounds = 3
steps = 2
queries = 2
batch = 8
learning-rate = 0.1
adapter.layers = "top:1"
objective = "cross-entropy"
data.clients = 2
personal.rounds = 1
evaluate.every = 0
"""
TOLERANCE = 1e-4
"""Largest error of a projected gradient, relative to the largest one of its step."""


def run_on_arm64(*arguments: str, cpu: str = "cortex-a76") -> str:
    """Return the standard output of the emulated Python, which must exit with status 0.

    The default processor of QEMU, `max`, has SVE, which makes matrix products twenty times slower.
    """
    root = ARM64 / "root"
    ended = subprocess.run(
        ["qemu-aarch64-static", "-L", root, root / "usr/bin/python", *arguments],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": f"{ARM64 / 'site'}:{ROOT}:{ROOT / 'tests'}"}
        | {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
        | {"QEMU_CPU": cpu},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_golden_files_hold_on_arm64() -> None:
    plain = ["-q", "-p", "no:cacheprovider", "--noconftest"]
    assert " passed" in run_on_arm64("-m", "pytest", *plain, "tests/golden")


def test_frames_are_written_read_and_refused_on_arm64() -> None:
    plain = ["-q", "-p", "no:cacheprovider", "--noconftest"]
    assert " passed" in run_on_arm64("-m", "pytest", *plain, "tests/shared/protocol/test_wire.py")


@pytest.fixture(scope="module")
def run_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with personal ledgers that this machine has computed."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.toml").write_text(SCENARIO)
    command = ["simulate", "small.toml", "--out", "run"]
    subprocess.run(
        [sys.executable, "-m", "samara", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    return folder / "run"


@pytest.mark.parametrize("cpu", ["cortex-a76", "cortex-a57"])
def test_a_ledger_of_this_machine_is_verified_on_arm64(run_of_this_machine: Path, cpu: str) -> None:
    digest = json.loads((run_of_this_machine / "result.json").read_text())["final_digest"]
    said = run_on_arm64(
        "-m", "samara", "server", "check", "--replay", str(run_of_this_machine), cpu=cpu
    )
    assert f"every digest reproduced; the last is {digest}" in " ".join(said.split())
    assert "personal ledgers of 2 clients: every digest reproduced" in said


def test_numba_and_numpy_replay_the_same_bits_on_arm64() -> None:
    run_on_arm64("-c", REPLAY_WITH_NUMBA)


def test_steps_of_tune_agree_with_those_of_this_machine(
    model_folder: Callable[[str], Path], data_file: Path, tmp_path: Path
) -> None:
    settings = small(model_folder("causal"), data_file, tmp_path) | {"steps": 2, "queries": 4}
    pairs = [f"{key}={value}" for key, value in settings.items() if key != "out"]
    command = [
        "-m",
        "samara",
        "tune",
        "--optimizer",
        "prge",
        "--set",
        *" --set ".join(pairs).split(),
    ]
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path / "here")],
        cwd=ROOT,
        env=os.environ | places,
        capture_output=True,
        check=True,
    )
    run_on_arm64(*command, "--out", str(tmp_path / "arm64"))
    steps = [read_trajectory(tmp_path / f / TRAJECTORY_FILE).steps for f in ("here", "arm64")]
    assert [len(taken) for taken in steps] == [2, 2]
    for here, there in zip(*steps, strict=True):
        assert (here.seeds == there.seeds).all()
        largest = np.abs(here.gradients).max()
        assert largest > 0
        np.testing.assert_allclose(
            there.gradients, here.gradients, rtol=0, atol=TOLERANCE * largest
        )
