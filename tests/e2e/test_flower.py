"""The real Flower engine, and Flower's bundle, run from another working directory."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from bases import basis_for
from foreign import write_foreign_names
from forked import LOADED
from helpers import ROOT, files_of
from live import ONE_SMALL_STEP, QUIET
from starts import start_for

from samara.server.live.flower_processes import end_processes
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

pytestmark = pytest.mark.slow

RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from samara.shared.settings.config import RunConfig
from samara.shared.results.result import RunResult
from samara.simulations.simulate import simulate
settings = json.loads(sys.argv[2])
print(simulate(RunConfig.of(settings, "test"), engine=sys.argv[3]))
"""


def run_elsewhere(code_folder: Path, settings: dict[str, Any], engine: str, cwd: Path) -> Path:
    """Simulate in a separate process, with the code of a folder and another working directory."""
    cwd.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", LOADED + RUN, str(code_folder), json.dumps(settings), engine],
        cwd=cwd,
        env={**os.environ, "RAY_worker_niceness": "0"},  # 15 would starve beside other tests
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return cwd / ended.stdout.strip().splitlines()[-1]


ANSWERS = (
    'kind = "generation"\nname = "again"\ntext = "{text} {answer}"\nlabel = "text"\ntokens = 3\n'
)


@pytest.mark.parametrize(
    "adapter",
    [
        "readout",
        *(
            pytest.param(kind, marks=pytest.mark.exhaustive)
            for kind in (
                *("top:2", "basis", "start", "readout with a start"),
                *("texts", "summed texts", "metric of answers"),
            )
        ),
    ],
)
def test_flowers_engine_writes_the_same_ledger(
    adapter: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The case with a start uses exact derivatives."""
    pytest.importorskip("ray", reason="the extra samara-fl[ray] is not installed")
    settings |= {"personal.rounds": 1}
    if adapter == "basis":
        settings |= {"adapter.basis": basis_for(settings, tmp_path)}
    elif adapter == "readout with a start":
        settings |= {"adapter.layers": "readout"}
        start = start_for(settings, tmp_path)
        settings |= {"adapter.layers": "auto", "adapter.start": start}
    elif adapter == "start":
        settings |= {"gradients": "exact", "adapter.start": start_for(settings, tmp_path)}
    elif adapter == "texts":
        settings |= {"task": "texts"}
    elif adapter == "summed texts":
        settings |= {"task": "texts", "objective": "summed-cross-entropy"}
    elif adapter == "metric of answers":
        task = tmp_path / "task.toml"
        task.write_text(ANSWERS)
        settings |= {"task": str(task), "objective": "metric"}
    else:
        settings |= {"adapter.layers": adapter}
    ours = simulate(RunConfig.of(settings, "test"))
    elsewhere = settings | {"out": str(tmp_path / "flower")}
    theirs = run_elsewhere(ROOT, elsewhere, "flower", tmp_path / "cwd")
    assert files_of(theirs / "ledger") == files_of(ours / "ledger")
    passes, expected = RunResult.read(theirs).passes, RunResult.read(ours).passes
    for client in range(3):
        # Each of Flower's processes that works for a client makes its first pass.
        repeated = passes[client] - expected[client]
        assert repeated % expected[client] == 0 if adapter.startswith("readout") else repeated == 0
    for client in range(3):
        personal = Path("clients") / str(client) / "personal.ledger"
        assert files_of(theirs / personal) == files_of(ours / personal)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The app bundle of the checkout, unpacked."""
    from flwr.cli.build import build_fab_from_disk

    data = build_fab_from_disk(ROOT)
    assert len(data) < 10 * 2**20
    folder = tmp_path / "bundle"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    assert not list(folder.rglob("*.py"))
    return folder


def test_the_bundle_runs_from_another_directory(
    settings: dict[str, Any], bundle: Path, tmp_path: Path
) -> None:
    ours = simulate(RunConfig.of(settings, "test"))
    elsewhere = settings | {"out": ""}
    theirs = run_elsewhere(bundle, elsewhere, "in-process", tmp_path / "cwd")
    assert files_of(theirs / "ledger") == files_of(ours / "ledger")


@pytest.mark.exhaustive
def test_flwr_run_runs_it_beside_modules_with_the_names_of_samaras_parts(
    bundle: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="the extra samara-fl[ray] is not installed")
    write_foreign_names(bundle)
    home, out = tmp_path / "flwr", tmp_path / "run"
    settings = ONE_SMALL_STEP | {"rounds": 1, "data.clients": 2, "out": str(out)}
    told = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    try:
        ended = subprocess.run(
            [Path(sys.executable).with_name("flwr"), "run", ".", "--stream", "--run-config", told],
            cwd=bundle,
            env={**os.environ, **QUIET, "FLWR_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    finally:  # the SuperLink that flwr has started goes on
        for process in psutil.process_iter(["cmdline"]):
            if str(home / "local-superlink" / "state.db") in (process.info["cmdline"] or ()):
                end_processes([process])
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert RunResult.read(out).final_round == 1
