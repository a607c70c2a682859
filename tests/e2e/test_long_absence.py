"""A client that was away for many rounds catches up in a live run.

The in-process engine builds the ledger with one client that stands for a live client. Then `samara
server up` continues with this ledger, and another client, which has seen none of its rounds,
connects for the first time. The client's digest must equal the server's.
"""

import json
from pathlib import Path

import pytest
from flwr.app import UserConfig

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from samara.client.app import app as client_app
from samara.client.limits.device_settings import CLIENT_INDEX, DEVICE_SETTINGS_KEY
from samara.devices.live.settings import resolve_device_settings
from samara.server.app import serve
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.simulations.engines.in_process import InProcessGrid

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

MISSED_ROUNDS, LIVE_ROUNDS = 4, 3
SETTINGS: dict[str, Scalar] = {
    "steps": 2,
    "queries": 16,
    "batch": 4,
    "learning-rate": 0.01,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.available": 1,
    "cohort.timeout": 120.0,
}


class _EnoughError(Exception):
    """The ledger is long enough."""


def build(config: RunConfig, device: int, rounds: int) -> None:
    """Serve a number of rounds in this process, with a client that stands for a live device."""
    asked: list[str] = []

    def count(kind: str, partition: int) -> None:
        asked.extend([kind] if kind == "train" else [])
        if len(asked) > rounds:
            raise _EnoughError

    device_settings = resolve_device_settings(
        "embedded", "messages", "messages", "cpu", ["threads=1"]
    )
    node: UserConfig = {CLIENT_INDEX: device, DEVICE_SETTINGS_KEY: json.dumps(device_settings)}
    try:
        serve(config, InProcessGrid(client_app, 1, config.flat(), count, None, [node]))
    except _EnoughError:
        return


def test_a_client_that_was_away_catches_up_live(short: Path) -> None:
    last = MISSED_ROUNDS + LIVE_ROUNDS
    settings = SETTINGS | {"rounds": last, "ledger.snapshot-every": 0}
    with LiveRun(short, settings, ["there", "away"], free_address()) as live:
        config = RunConfig.of(settings | {"out": str(live.run)}, "absence")
        build(config, live.devices["there"], MISSED_ROUNDS)
        assert live.last() == MISSED_ROUNDS, "the ledger was not built"
        live.serve()
        live.start_client("away", None, "--set", "threads=1")
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        live.check()
        reached, _ = live.positions()["away"]
        assert reached == last
        assert live.said("away").count("answered: train, round ") == LIVE_ROUNDS
        first, second = (live.rounds[MISSED_ROUNDS + number]["clients"] for number in (1, 2))
        device = str(live.devices["away"])
        assert first[device]["bytes_down"] > second[device]["bytes_down"]
