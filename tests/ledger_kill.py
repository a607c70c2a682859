"""Kills the writer of a ledger repeatedly, and checks that no round is lost.

A separate process appends rounds, with snapshots and compaction, and acknowledges each round over a
pipe once `append` has returned. After a random number of acknowledgements and a further random
time, it gets `kill -9`. The ledger is then opened: it must contain every acknowledged round with
the acknowledged digest, and the strict proof must succeed. The next writer continues the same
ledger. A reader reads the ledger while it is being written, and must see only whole rounds.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from samara.shared.errors import LedgerError
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest, quantize
from samara.shared.protocol.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

ROOT = Path(__file__).parents[1]
LAYOUT = Layout((Tensor("b", 2000, 1, ADAPTER_GROUP),), 1, 1.0, 0, "rademacher")
HEADER = LedgerHeader(0, b"to kill!", LAYOUT.hash)
SNAPSHOT_EVERY = 7


def opened(folder: Path) -> Ledger:
    return Ledger(folder, HEADER, LAYOUT, SNAPSHOT_EVERY)


def write(folder: Path) -> None:
    """Append rounds until killed, and acknowledge each."""
    ledger = opened(folder)
    while True:
        number = ledger.position.round + 1
        rng = np.random.default_rng(number)
        groups = tuple(
            Group(number, DerivedSeeds(number, client, 1, 2), one_pass)
            for client in range(int(rng.integers(1, 30)))
            for one_pass in quantize(rng.normal(scale=1e-3, size=2))
        )
        # long records are written page by page, so that some writes can be caught halfway
        devices = range(3_000 if rng.random() < 0.3 else 1)
        contributors = tuple(Contributor(device, 1, 1) for device in devices)
        ledger.append(RoundDelta(number, 0, bytes(8), contributors, groups))
        print(number, ledger.digest.hex(), flush=True)
        ledger.compact(max(0, number - int(rng.integers(20))))


def killed(folder: Path, rng: np.random.Generator) -> dict[int, str]:
    """Let a writer work while a reader reads, and kill it; return the acknowledged digests."""
    command = [sys.executable, __file__, str(folder)]
    acknowledged = {}
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(int(rng.integers(1, 20))):
            number, said = writer.stdout.readline().split()
            acknowledged[int(number)] = said
            if rng.random() < 0.2:
                read_along(folder)
        for _ in range(int(rng.integers(100_000))):
            pass  # anywhere within the next rounds
        writer.kill()
        *whole, _ = writer.stdout.read().split("\n")
    return acknowledged | {int(number): said for number, said in map(str.split, whole)}


def read_along(folder: Path) -> None:
    """Read the ledger while it is being written."""
    try:
        rounds = [record.delta.round for record in read_ledger(folder)]
    except LedgerError as error:
        if "compaction" not in str(error):
            raise
    else:
        if not rounds or rounds != list(range(rounds[0], rounds[-1] + 1)):
            raise AssertionError(f"a reader saw rounds {rounds}")


def kill(kills: int, seed: int, folder: Path) -> tuple[int, int, int]:
    """Kill a number of writers of one ledger.

    Returns:
        Numbers of acknowledged rounds, of rounds found without acknowledgement, and of torn
        records.

    Raises:
        AssertionError: if an acknowledged round is lost or differs.
    """
    rng = np.random.default_rng(seed)
    acknowledged: dict[int, str] = {}
    unacknowledged = torn = 0
    for _ in range(kills):
        acknowledged |= killed(folder, rng)
        ledger = opened(folder)
        ledger.close()
        end, last = ledger.position.round, max(acknowledged)
        if end < last:
            raise AssertionError(f"round {last} was acknowledged, and opening leads to {end}")
        for step in verify_ledger(folder, LAYOUT):
            proof = digest(LAYOUT.hash, step.state).hex()
            if acknowledged.get(step.round, proof) != proof:
                raise AssertionError(f"round {step.round} is not the one that was acknowledged")
        if (step.round, proof) != (end, ledger.digest.hex()):
            raise AssertionError(f"opening leads to round {end}, and the proof to {step.round}")
        unacknowledged += end not in acknowledged
        torn += bool(ledger.recovered)
    return len(acknowledged), unacknowledged, torn


if __name__ == "__main__":
    write(Path(sys.argv[1]))
