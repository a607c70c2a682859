"""Devices with sound keys that send a live server what no honest device would.

    python -m benchmarks.faults.hostile_clients [--rounds 60] [--hostile 3]

`samara server up` over TLS with device keys, two honest toy devices, and hostile ones in this
process: they take part as the others do, and answer with garbage, with reports of other rounds,
with their own old reports again, with numbers that are none, or with 10 MB. None of it may be
folded, no process of the server may end, and its memory must not grow.
"""

import argparse
import logging
import os
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from benchmarks.faults.hostile_frames import WAYS
from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.server_kill import settings_of
from benchmarks.faults.toy_clients import Device
from shared.ledger.reading import read_ledger
from shared.wire import RECORD

HONEST = 2
PROCESSES = ("server.live.superlink", "flwr-serverapp")
FLOOD_BYTES = 10 * 2**20


class HostileDevice(Device):
    """Introduces itself as it should, and forges every report.

    Attributes:
        ways: how often it forged in which way; shared by all of them.
    """

    ways: ClassVar[Counter[str]] = Counter()
    _counting: ClassVar = threading.Lock()

    def __init__(self, number: int, devices: int, superlink: str, ca: Path, key: Path) -> None:
        super().__init__(number, devices, superlink, ca, key)
        self._rng = np.random.default_rng(number)
        self._old: list[bytes] = []

    def reply(self, message: Message, context: Context) -> Message:
        """Return its reply."""
        reply = super().reply(message, context)
        if message.metadata.message_type != "train":
            return reply
        frame = reply.content.config_records[RECORD]["frame"]
        assert isinstance(frame, bytes), "a toy device answers with a frame"
        name, forged = self._forged(frame)
        self._old = [*self._old[-20:], frame]
        with self._counting:
            self.ways[name] += 1
        reply.content[RECORD] = ConfigRecord({"frame": forged})
        return reply

    def _forged(self, frame: bytes) -> tuple[str, bytes]:
        """A way to forge, and what comes of it; never the frame itself."""
        chance = self._rng.random()
        if chance < 0.1:
            return "ten_megabytes", frame + self._rng.bytes(FLOOD_BYTES)
        if chance < 0.25 and self._old:
            return "old_report", self._old[self._rng.integers(len(self._old))]
        way = WAYS[self._rng.integers(len(WAYS))]
        forged = way(frame, self._old or [b""], self._rng)
        return way.__name__, forged if forged != frame else b""


def attack(folder: Path, rounds: int, hostile: int) -> tuple[Counter[str], list[dict[str, int]]]:
    """Serve so many rounds to hostile and honest devices.

    Returns:
        How often which way was used, and MiB of the server's processes (unique set size) at every
        tenth of the rounds.

    Raises:
        AssertionError: if a forged report was folded or a process of the server ended.
    """
    names = [f"device-{number}" for number in range(HONEST + hostile)]
    address = f"127.0.0.1:{20_000 + os.getpid() % 20_000}"
    more = {"cohort.fraction": 1.0, "cohort.available": len(names), "data.clients": len(names)}
    settings = settings_of(folder / "run", rounds, 30.0) | more | {"cohort.patience": 10**6}
    del settings["out"]
    memory: list[dict[str, int]] = []
    with LiveRun(folder, settings, names, address) as live, ExitStack() as devices:
        live.start_server()
        live.wait(lambda: live.said().count("may join") == len(names), "the server")
        assert live.server is not None, "it was started above"
        for number, name in enumerate(names):
            kind = Device if number < HONEST else HostileDevice
            ca = live.run / "certificates" / "ca.pem"
            device = kind(number, len(names), address, ca, live.key(name))
            device.start()
            devices.callback(device.end)
        for number in range(1, rounds):
            live.wait_for_round(number)
            if number % max(1, rounds // 10) == 0:
                found = {part: live.process(live.server, part) for part in PROCESSES}
                memory.append({n: p.memory_full_info().uss // 2**20 for n, p in found.items() if p})
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server.returncode == 0, live.said()[-2000:]
        assert "starting again" not in live.said(), live.said()[-2000:]
        live.check()
        honest = sorted(live.devices[name] for name in names[:HONEST])
        for record in read_ledger(live.run / "ledger"):
            contributors = [c.client for c in record.delta.contributors]
            assert contributors == honest, f"round {record.delta.round} folded {contributors}"
    return HostileDevice.ways, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--hostile", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        ways, memory = attack(Path(name), arguments.rounds, arguments.hostile)
    print(f"{sum(ways.values())} forged reports in {arguments.rounds} rounds: {dict(ways)}")
    print(f"none folded, no process ended; unique MiB by tenths of the rounds: {memory}")


if __name__ == "__main__":
    main()
