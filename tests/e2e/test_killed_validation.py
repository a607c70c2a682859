"""A simulation whose process is killed around a validation, and which then continues."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from federations import Settings, config_of
from forked import LOADED
from helpers import ROOT

from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

SIMULATION_THAT_IS_KILLED = """
import json, os, signal, sys
from flwr.app import MessageType
from federations import grid_of
from samara.server.app import serve
from samara.server.rounds.event_log import EventLog
from samara.shared.settings.config import RunConfig

flat, moment, best = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = RunConfig.of(flat, "test")
grid = grid_of(config)
deliver, append, evaluated = grid._deliver, EventLog._record, []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def deliver_or_die(message):
    metadata = message.metadata
    validates = metadata.message_type == MessageType.EVALUATE
    if validates and metadata.group_id == str(best + 1):
        evaluated.append(message)
        if len(evaluated) == (1 if moment == "before its validation" else 2):
            die()
    return deliver(message)

def append_or_die(log, event):
    if moment == "before its event" and (event["event"], event["round"]) == ("round", best):
        die()
    append(log, event)

grid._deliver, EventLog._record = deliver_or_die, append_or_die
serve(config, grid)
"""


def simulate_until_killed(config: RunConfig, moment: str, best: int) -> None:
    arguments = [json.dumps(config.flat()), moment, str(best)]
    ended = subprocess.run(
        [sys.executable, "-c", LOADED + SIMULATION_THAT_IS_KILLED, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == -9, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("before its event", marks=pytest.mark.exhaustive),
        pytest.param("before its validation", marks=pytest.mark.exhaustive),
        "amid it",
    ],
)
def test_a_validation_that_a_killed_server_did_not_finish_is_done_when_the_run_goes_on(
    moment: str, settings: Settings, tmp_path: Path
) -> None:
    """The process is killed after the best round is in the ledger."""
    changes: dict[str, Any] = {"rounds": 4, "steps": 1, "learning_rate": 3.0, "seed": 5}
    changes |= {"evaluate__every": 1, "evaluate__best": True, "data__seed": 0}
    whole = read_result(simulate(config_of(settings, **changes, out=str(tmp_path / "whole"))))
    best = whole["rounds"][-1]["back_to"]
    if best not in (1, 2, 3):
        pytest.fail("no round in between is the best; choose another seed")
    config = config_of(settings, **changes)
    simulate_until_killed(config, moment, best)
    assert [r.delta.round for r in read_ledger(Path(config.out) / "ledger")][-1] == best
    resumed = read_result(simulate(config))
    assert resumed["rounds"][-1]["back_to"] == best
    assert resumed["final_digest"] == whole["final_digest"]
    evaluations = [
        [(e["round"], e["split"], e["columns"]) for e in result["evaluations"]]
        for result in (whole, resumed)
    ]
    assert evaluations[0] == evaluations[1]
