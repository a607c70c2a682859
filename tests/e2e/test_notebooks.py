"""The notebooks run from the first to the last cell, and are stored without outputs."""

import json
import os
import sys
from pathlib import Path

import pytest
from forked import ForkingPopen
from helpers import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
SECONDS = 600
"""Time limit of a cell; on an idle machine the slowest cell takes half a minute."""
SMALL = {
    **{"rounds": 2, "steps": 1, "queries": 2, "batch": 4, "personal.rounds": 1},
    **{"evaluate.limit": 4, "data.clients": 3, "threads": 1},
}
FEW_MESSAGES = {"train": 24, "validation": 8, "test": 8}
SMALLER = f"""
import samara
from samara.overrides import settings_of
from samara.shared.tasks import embedded

embedded.MESSAGES_PER_WRITER = {FEW_MESSAGES}

def smaller(scenario, simulate=samara.simulate, **named):
    seeds = {{"seeds": named.pop("seeds")}} if "seeds" in named else {{}}
    return simulate(scenario, **seeds, **settings_of(named) | {SMALL})

samara.simulate = smaller
"""
"""Cell that is inserted before a notebook's cells, so that simulations take seconds."""
FEWER = {
    "\nrounds = 3\n": "\nrounds = 2\nsteps = 1\nqueries = 2\nbatch = 4\n",
    "SEEDS = [0, 1, 2]": "SEEDS = [0, 1]",
}
"""Replacements in a notebook's cells, and in the scenario file of its live clients."""


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_outputs_are_not_kept(file: Path) -> None:
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    import nbformat

    monkeypatch.setattr("jupyter_client.launcher.Popen", ForkingPopen)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(file, as_version=4)
    for cell in notebook.cells:
        for many, few in FEWER.items():
            cell.source = cell.source.replace(many, few)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(SMALLER))
    resources = {"metadata": {"path": str(tmp_path)}}
    try:
        nbclient.NotebookClient(
            notebook,
            timeout=SECONDS,
            startup_timeout=SECONDS,
            kernel_name="python3",
            shutdown_kernel="immediate",
            resources=resources,
        ).execute()
    finally:
        for log in sorted(tmp_path.glob("*.txt")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}")
    shown = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs]
    assert len(shown) > 2
