"""Every kind of attack on a run, what it did before and what it does now, as a table.

    python -m benchmarks.faults.attacks [--only WORD …]

Strangers, clients with sound keys and a gateway attack real processes over TLS on loopback; hostile
hellos and damaged files go to the server's own functions, as bytes. `before` was found by hand in
the version before the attacks were looked at and is not measured again; `now` is measured by this
command. False reports and instructions have tables of their own, which the last rows name.
Rows whose text contains none of the words of --only are left out. Takes some minutes.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.attacked_run import attack
from benchmarks.faults.attacked_superlink import (
    RunningSuperLink,
    damaged_key_file,
    endless_bodies,
    file_modes,
    flood_of_requests,
    running_superlink,
    start_run_through_a_tunnel,
    stolen_key,
    strict_client,
    unfinished_handshakes,
)
from benchmarks.faults.hostile_gateway import speak_for_a_phone
from benchmarks.faults.hostile_hellos import CLIENTS, HELLOS, HostileGrid
from benchmarks.faults.malformed_messages import MalformedDevice
from benchmarks.scale.key_checks import seconds_of_round
from server.app import serve
from shared.config import RunConfig
from shared.ledger.reading import read_ledger
from shared.step_record import RecordedStepSize
from shared.step_size import Observation, StepSize

MANY_KEYS = 1000
HELLOS_BEFORE = {
    "clients: 10⁹": "the run ends",
    "clients: 99,999": "all honest clients are refused",
    "a layout of 2²⁹ numbers": "the server allocates 4 GiB",
    "a foreign layout": "the folder is locked for good",
    "another model": "all honest clients are refused",
}
"""Consequences of hostile hellos in a new run, before."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        attack: who does what.
        before: what came of it in an earlier version.
        now: measures what comes of it now, in a few words.
    """

    attack: str
    before: str
    now: Callable[[], str]


def in_new_folder(measure: Callable[[Path], str]) -> str:
    """Measure in an empty folder; its path is short, as sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="w") as name:
        return measure(Path(name))


def gateway(folder: Path) -> str:
    """A gateway answers for a phone without a key."""
    sound, forged, ways = speak_for_a_phone(folder, 8)
    return f"{ways.total()} forged answers, in {forged} of {8 - sound} rounds one counts"


def malformed(folder: Path) -> str:
    """Four rounds in which one of three clients sends what Flower cannot read."""
    MalformedDevice.sent.clear()
    footprints = attack(folder, 4, 1, MalformedDevice)
    database = max(footprint.database for footprint in footprints) / 1024
    return (
        f"{MalformedDevice.sent.total()} messages: none counts, the run ends with status 0, "
        f"database {database:.0f} MB"
    )


def hostile_hello(name: str, folder: Path) -> str:
    """One of four clients sends another hello than it should."""
    settings = {"out": str(folder / "run"), "rounds": 2, "steps": 1, "queries": 2}
    settings |= {"learning-rate": 0.001, "data.clients": CLIENTS, "personal.rounds": 0}
    settings |= {"evaluate.every": 0, "cohort.timeout": 0.05}
    config = RunConfig.of(settings, "hello")
    run = serve(config, HostileGrid(config, {0: HELLOS[name]}))
    counted = [len(record.delta.contributors) for record in read_ledger(run / "ledger")]
    assert counted == [CLIENTS - 1] * 2, f"clients by round: {counted}"
    return "refused alone; the others go on"


def many_keys(folder: Path) -> str:
    """A round's checks of clients' keys."""
    _, seconds = seconds_of_round(folder, MANY_KEYS, 2 * MANY_KEYS)
    return f"{seconds:.2f} s"


def half_a_line(folder: Path) -> str:
    """The server was killed while it wrote a step's observation."""
    file, steps = folder / "step_size.jsonl", 5
    record = RecordedStepSize(StepSize(100), file)
    for _ in range(steps):
        rate = record.size.learning_rate
        record.record(Observation(0.7, 1.0, 1.0, 1.0, rate, curvature=3.0, directions=1))
    file.write_bytes(file.read_bytes()[:-10])
    done = RecordedStepSize(StepSize(100), file, steps).size.done
    return f"recovered, the run goes on after step {done}"


def rows(link: RunningSuperLink) -> list[Row]:
    """Return all rows, given a SuperLink to attack."""

    def on(attack: Callable[[RunningSuperLink], str]) -> Callable[[], str]:
        return partial(attack, link)

    def new(measure: Callable[[Path], str]) -> Callable[[], str]:
        return partial(in_new_folder, measure)

    return [
        Row(
            "a gateway with a sound key answers for a phone whose key is deleted",
            "3 of 3 rounds count it",
            new(gateway),
        ),
        Row(
            "a client's replies without their parts, pushes as the SuperLink, 20,000 objects",
            "the first reply ends the run with status 1; database 381 MB by one device",
            new(malformed),
        ),
        *(
            Row(f"a hello: {name}", before, new(partial(hostile_hello, name)))
            for name, before in HELLOS_BEFORE.items()
        ),
        Row("100 requests of a stranger, no messages", "5 MB of log", on(flood_of_requests)),
        Row("60 bodies that never end", "155 MiB held", on(endless_bodies)),
        Row(
            "300 TLS handshakes that never end",
            "60 s each, their number not limited",
            on(unfinished_handshakes),
        ),
        Row(
            "`start-run` through a forwarder on the server",
            "opened: code on every client",
            on(start_run_through_a_tunnel),
        ),
        Row("another user reads the run's files", "as the umask has it", on(file_modes)),
        Row(
            "a strict TLS client (Python 3.13)", "refuses the run's certificate", on(strict_client)
        ),
        Row(
            "whoever has a client's key, after it was rotated",
            "no rotation: a new key is a new client",
            on(stolen_key),
        ),
        Row(f"{MANY_KEYS:,} registered keys: checks of a round", "333 s", new(many_keys)),
        Row("a damaged key file", "ends the server", on(damaged_key_file)),
        Row("half a line in `step_size.jsonl`", "the run cannot go on", new(half_a_line)),
    ]


ELSEWHERE = (
    "| one of eight clients reports −100·g | 74.5 → 58.0 % | docs/concepts/robustness.md, "
    "`benchmarks.faults.hostile_reports` |",
    "| a server with a made-up run id | 3,072 scalars about one example | "
    "docs/concepts/threat-model.md, tests/integration/test_signed_runs.py |",
)
"""Rows of attacks that are measured by themselves."""


def table(words: list[str]) -> Iterator[str]:
    """Measure row by row; yield the lines of a Markdown table."""
    yield "| attack | before | now |"
    yield "|---|---|---|"
    with tempfile.TemporaryDirectory(prefix="w") as name, running_superlink(Path(name)) as link:
        for row in rows(link):
            if not words or any(word in row.attack for word in words):
                yield f"| {row.attack} | {row.before} | {row.now()} |"
    yield from (row for row in ELSEWHERE if not words or any(word in row for word in words))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", default=[])
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    logging.disable(logging.WARNING)
    for line in table(arguments.only):
        print(line, flush=True)


if __name__ == "__main__":
    main()
