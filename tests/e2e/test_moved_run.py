"""A run is backed up while real processes serve it, and continues on another host.

The digest at the end must be the same. The other host is another folder and another address of this
machine.
"""

import re
from pathlib import Path

import pytest

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import MODEL, TASK, samara, write_messages
from samara.shared.results.result import read_result

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

NAMES = "kitchen", "garden"
ROUNDS = 6
SETTINGS = {
    "rounds": ROUNDS,
    "steps": 1,
    "queries": 4,
    "batch": 8,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.available": len(NAMES),
    "cohort.minimum": len(NAMES),
    "cohort.timeout": 600.0,
}


def start_clients(live: LiveRun, data: dict[str, Path]) -> None:
    for name in NAMES:
        options = ("--model", MODEL, "--data", str(data[name]), "--task", TASK)
        live.start_client(name, None, *options, "--set", "threads=1")


def wait_for_end(live: LiveRun) -> None:
    for process in [live.server, *live.clients.values()]:
        assert process is not None
        live.wait(lambda process=process: process.poll() is not None, "the end of the run")  # type: ignore[misc]
        assert process.returncode == 0, live.said()[-2000:]


def test_a_backup_goes_on_on_another_host_to_the_digest_of_the_original(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("w")
    data = dict(zip(NAMES, write_messages(folder, 0).values(), strict=False))
    with LiveRun(folder, SETTINGS, NAMES, free_address()) as live:
        live.serve()
        start_clients(live, data)
        live.wait_for_round(2)
        said = samara(folder, "server", "backup", str(live.run), str(folder / "run.backup"))
        backed_up = int(re.findall(r"round (\d+)", said)[0])
        assert 2 <= backed_up < ROUNDS
        wait_for_end(live)
        assert live.check() == ROUNDS
        original = read_result(live.run)["final_digest"]
    elsewhere = folder / "elsewhere"
    said = samara(folder, "server", "restore", str(folder / "run.backup"), "--out", str(elsewhere))
    assert f"continues after round {backed_up}" in said
    address = free_address()
    with LiveRun(folder, SETTINGS, NAMES, address, run=elsewhere) as moved:
        moved.serve()
        start_clients(moved, data)
        wait_for_end(moved)
        assert moved.check() == ROUNDS
    assert read_result(elsewhere)["final_digest"] == original
    assert "this run was restored from a backup without that round" in moved.said()
