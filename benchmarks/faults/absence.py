"""A client that was away for many rounds catches up in a live run.

    python -m benchmarks.faults.absence [--rounds 1000] [--snapshot-every 0]

The in-process engine builds the ledger with one client that stands for a live client. Then `samara
server up` continues with this ledger, and another client, which has seen none of its rounds,
connects for the first time. The program prints the bytes sent to this client, and the seconds until
the client has caught up and trained. The client's digest must equal the server's.
"""

import json
import logging
import re
import tempfile
import time
from pathlib import Path

from flwr.app import UserConfig

from benchmarks.arguments import arguments
from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from samara.client.app import app as client_app
from samara.client.limits.device_settings import CLIENT_INDEX, DEVICE_SETTINGS_KEY
from samara.devices.live.settings import resolve_device_settings
from samara.server.app import serve
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import Scalar
from samara.simulations.engines.in_process import InProcessGrid

LIVE_ROUNDS = 3
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
    """Serve a number of rounds of a run in process, with one client that stands for a live
    device.
    """
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


def catch_up(folder: Path, rounds: int, snapshot_every: int) -> str:
    """Build a ledger, let a client catch up, and return a sentence about bytes and seconds.

    Raises:
        AssertionError: if the client does not reach the server's state.
    """
    settings = SETTINGS | {"rounds": rounds + LIVE_ROUNDS, "ledger.snapshot-every": snapshot_every}
    address = free_address()
    with LiveRun(folder, settings, ["there", "away"], address) as live:
        config = RunConfig.of(settings | {"out": str(live.run)}, "absence")
        begun = time.monotonic()
        build(config, live.devices["there"], rounds)
        built = time.monotonic() - begun
        assert live.last() == rounds, "the ledger was not built"
        live.start_server()
        live.wait(lambda: live.said().count("may join") == 2, "the server")
        live.start_client("away", None, "--set", "threads=1")
        live.wait_for_round(rounds + 2)
        first, second = (live.rounds[rounds + n]["clients"] for n in (1, 2))
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        live.check()
        reached, _ = live.positions()["away"]
        assert reached == rounds + LIVE_ROUNDS, f"the client is at round {reached}"
        took = re.findall(r"answered: train, round \d+, ([0-9.]+) s", live.said("away"))
        device = str(live.devices["away"])
    sent, usual = (answered[device]["bytes_down"] for answered in (first, second))
    return (
        f"{rounds} rounds of 32 scalars (built in {built:.0f} s), snapshot every {snapshot_every}: "
        f"the client received {sent:,} bytes, and had caught up and trained after {took[0]} s; "
        f"in the next round {usual:,} bytes and {took[1]} s. All digests agree"
    )


def main() -> None:
    given = arguments(__doc__, rounds=1000, snapshot_every=0)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        print(catch_up(Path(name), given.rounds, given.snapshot_every))


if __name__ == "__main__":
    main()
