"""Ledgers under damage and kills, and a replay from the disk."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from helpers import ROOT
from ledger_fuzz import fuzz
from ledger_kill import kill


def test_damaged_ledgers_lead_to_no_wrong_digest() -> None:
    with patch("os.fsync"):
        outcomes = fuzz(40, seed=1)
    ends = {outcome for counter in outcomes.values() for outcome in counter}
    assert sum(sum(counter.values()) for counter in outcomes.values()) == 2 * 40
    assert {"damage found", "opened whole", "opened prefix", "refused"} <= ends


@pytest.mark.slow
def test_killed_writers_lose_no_acknowledged_round(tmp_path: Path) -> None:
    acknowledged, *_ = kill(5, 1, tmp_path / "ledger")
    assert acknowledged >= 5


@pytest.mark.slow
def test_a_ledger_replays_from_the_disk_in_a_fresh_process() -> None:
    command = [sys.executable, "-m", "benchmarks.speed.ledger_replay"]
    sizes = ["--rounds", "3", "--seeds", "4", "--elements", "5000"]
    said = subprocess.run(
        [*command, *sizes], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert "3 rounds of 4 seeds, 5,000 elements" in said
    assert "over the warm process" in said
