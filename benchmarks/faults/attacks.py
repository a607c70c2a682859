"""A table of all kinds of attacks on a run, with their outcomes.

    python -m benchmarks.faults.attacks [--only WORD …]

Strangers, clients with valid keys and a gateway attack real processes over TLS on loopback. Hostile
hellos and damaged files go directly to the server's functions, as bytes. With --only, rows without
any of the words are left out. The program takes some minutes.
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
from samara.server.app import serve
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.step_size import Observation, RecordedStepSize, StepSize
from samara.shared.settings.config import RunConfig


class Row(NamedTuple):
    """A kind of attack, as a row of the table.

    Attributes:
        attack: attacker and action.
        outcome: function that carries out the attack, and returns a short description of its
            outcome.
    """

    attack: str
    outcome: Callable[[], str]


def in_new_folder(measure: Callable[[Path], str]) -> str:
    """Measure in an empty folder, whose path is short because sockets are created in it."""
    with tempfile.TemporaryDirectory(prefix="w") as name:
        return measure(Path(name))


def gateway(folder: Path) -> str:
    """Attack as a gateway that answers in the name of a phone, without the phone's key."""
    sound, forged, ways = speak_for_a_phone(folder, 8)
    return f"{ways.total()} forged answers; one was aggregated in {forged} of {8 - sound} rounds"


def malformed(folder: Path) -> str:
    """Attack as one of three clients with unreadable messages, in four rounds."""
    MalformedDevice.sent.clear()
    footprints = attack(folder, 4, 1, MalformedDevice)
    database = max(footprint.database for footprint in footprints) / 1024
    return (
        f"{MalformedDevice.sent.total()} messages: none counts, the run ends with status 0, "
        f"database {database:.0f} MB"
    )


def hostile_hello(name: str, folder: Path) -> str:
    """Attack as one of four clients with a wrong hello."""
    settings = {"out": str(folder / "run"), "rounds": 2, "steps": 1, "queries": 2}
    settings |= {"learning-rate": 0.001, "data.clients": CLIENTS, "personal.rounds": 0}
    settings |= {"evaluate.every": 0, "cohort.timeout": 0.05}
    config = RunConfig.of(settings, "hello")
    run = serve(config, HostileGrid(config, {0: HELLOS[name]}))
    counted = [len(record.delta.contributors) for record in read_ledger(run / "ledger")]
    assert counted == [CLIENTS - 1] * 2, f"clients by round: {counted}"
    return "only this client is refused; the others continue"


def half_a_line(folder: Path) -> str:
    """Continue a run whose server was killed in the middle of a line of `step_size.jsonl`."""
    file, steps = folder / "step_size.jsonl", 5
    record = RecordedStepSize(StepSize(100), file)
    for _ in range(steps):
        rate = record.size.learning_rate
        record.record(Observation(0.7, 1.0, 1.0, 1.0, rate, curvature=3.0, directions=1))
    file.write_bytes(file.read_bytes()[:-10])
    done = RecordedStepSize(StepSize(100), file, steps).size.done
    return f"recovered; the run continues after step {done}"


def rows(link: RunningSuperLink) -> list[Row]:
    """Return all rows of the table, given a SuperLink to attack."""

    def on(attack: Callable[[RunningSuperLink], str]) -> Callable[[], str]:
        return partial(attack, link)

    def new(measure: Callable[[Path], str]) -> Callable[[], str]:
        return partial(in_new_folder, measure)

    return [
        Row("a gateway with a valid key answers for a phone whose key is deleted", new(gateway)),
        Row(
            "a client's replies without their parts, pushes as the SuperLink, 20,000 objects",
            new(malformed),
        ),
        *(Row(f"a hello: {name}", new(partial(hostile_hello, name))) for name in HELLOS),
        Row("100 requests of a stranger that are not messages", on(flood_of_requests)),
        Row("60 bodies that never end", on(endless_bodies)),
        Row("300 TLS handshakes that never end", on(unfinished_handshakes)),
        Row("`start-run` through a forwarder on the server", on(start_run_through_a_tunnel)),
        Row("another user reads the run's files", on(file_modes)),
        Row("a strict TLS client (Python 3.13)", on(strict_client)),
        Row("a thief of a client's earlier key, after a rotation", on(stolen_key)),
        Row("a damaged key file", on(damaged_key_file)),
        Row("half a line in `step_size.jsonl`", new(half_a_line)),
    ]


def table(words: list[str]) -> Iterator[str]:
    """Carry out the attacks one by one, and yield the lines of a Markdown table."""
    yield "| attack | outcome |"
    yield "|---|---|"
    with tempfile.TemporaryDirectory(prefix="w") as name, running_superlink(Path(name)) as link:
        for row in rows(link):
            if not words or any(word in row.attack for word in words):
                yield f"| {row.attack} | {row.outcome()} |"


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
