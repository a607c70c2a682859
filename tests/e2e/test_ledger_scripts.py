"""A handful of what the scripts in benchmarks/ do at length: damage, kills, a replay from disk."""

import os
import runpy
import subprocess
import sys
from unittest.mock import patch

import pytest
from helpers import ROOT

BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *arguments: object) -> str:
    """What a script prints, run in a process of its own with the code of this checkout."""
    ended = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_damaged_ledgers_lead_to_no_wrong_digest() -> None:
    fuzz = runpy.run_path(str(BENCHMARKS / "faults/ledger_fuzz.py"))["fuzz"]
    with patch("os.fsync"):
        outcomes = fuzz(40, seed=1)
    ends = {outcome for counter in outcomes.values() for outcome in counter}
    assert sum(sum(counter.values()) for counter in outcomes.values()) == 2 * 40
    assert {"damage found", "opened whole", "opened prefix", "refused"} <= ends


@pytest.mark.slow
def test_killed_writers_lose_no_acknowledged_round() -> None:
    assert "none lost" in run("faults/ledger_kill.py", "--kills", 5, "--seed", 1)


@pytest.mark.slow
def test_a_ledger_replays_from_the_disk_in_a_fresh_process() -> None:
    said = run("speed/ledger_replay.py", "--rounds", 3, "--seeds", 4, "--elements", 5000)
    assert "3 rounds of 4 seeds, 5,000 elements" in said
    assert "over the warm process" in said
