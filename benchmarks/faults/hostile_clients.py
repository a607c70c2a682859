"""Devices with valid keys that send false and invalid reports to a live server.

    python -m benchmarks.faults.hostile_clients [--rounds 60] [--hostile 3]

The run is `samara server up` over TLS with device keys. Two honest toy devices and the hostile
devices run in this process. Hostile devices take part like honest devices, but answer with garbage,
with reports of other rounds, with their own old reports, with NaN, or with 10 MB. No such report
may be aggregated, no process of the server may end, and the server's memory must not grow.
"""

import logging
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from benchmarks.arguments import arguments
from benchmarks.faults.attacked_run import attack
from benchmarks.faults.hostile_frames import WAYS
from benchmarks.faults.toy_clients import Device
from samara.shared.protocol.wire import RECORD

FLOOD_BYTES = 10 * 2**20


class HostileDevice(Device):
    """A device that sends a valid hello and forges every report.

    Attributes:
        ways: number of forged reports by kind, for all hostile devices together.
    """

    ways: ClassVar[Counter[str]] = Counter()
    _counting: ClassVar = threading.Lock()

    def __init__(self, number: int, devices: int, superlink: str, ca: Path, key: Path) -> None:
        super().__init__(number, devices, superlink, ca, key)
        self._rng = np.random.default_rng(number)
        self._old: list[bytes] = []

    def reply(self, message: Message, context: Context) -> Message:
        """Return a valid hello, or a forged report."""
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
        """Return a kind of forgery and a forged frame, which differs from the given frame."""
        chance = self._rng.random()
        if chance < 0.1:
            return "ten_megabytes", frame + self._rng.bytes(FLOOD_BYTES)
        if chance < 0.25 and self._old:
            return "old_report", self._old[self._rng.integers(len(self._old))]
        way = WAYS[self._rng.integers(len(WAYS))]
        forged = way(frame, self._old or [b""], self._rng)
        return way.__name__, forged if forged != frame else b""


def main() -> None:
    given = arguments(__doc__, rounds=60, hostile=3)
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        footprints = attack(Path(name), given.rounds, given.hostile, HostileDevice)
    ways = HostileDevice.ways
    print(f"{ways.total()} forged reports in {given.rounds} rounds: {dict(ways)}")
    print("none aggregated, no process ended; by tenths of rounds, MiB of memory and KiB of files:")
    for footprint in footprints:
        print(f"  {footprint}")


if __name__ == "__main__":
    main()
