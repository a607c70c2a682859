"""Devices with sound keys that send a live server what no honest device would.

    python -m benchmarks.faults.hostile_clients [--rounds 60] [--hostile 3]

`samara server up` over TLS with device keys, two honest toy devices, and hostile ones in this
process: they take part as the others do, and answer with garbage, with reports of other rounds,
with their own old reports again, with numbers that are none, or with 10 MB. None of it may be
folded, no process of the server may end, and its memory must not grow.
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


def main() -> None:
    given = arguments(__doc__, rounds=60, hostile=3)
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        footprints = attack(Path(name), given.rounds, given.hostile, HostileDevice)
    ways = HostileDevice.ways
    print(f"{ways.total()} forged reports in {given.rounds} rounds: {dict(ways)}")
    print("none folded, no process ended; by tenths of the rounds, MiB of memory and KiB of files:")
    for footprint in footprints:
        print(f"  {footprint}")


if __name__ == "__main__":
    main()
