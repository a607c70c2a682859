"""The cost of a client for its link, by Flower's SuperNode and by the stream, in namespaces.

    python -m benchmarks.scale.wires [--flower 2] [--stream 2] [--rounds 20] [--idle 720]
        [--folder DIR]

Takes root. A server, a gateway beside it, and clients with the embedded model, each in a network
namespace of its own, over TLS with device keys: some by a SuperNode, the others by the stream. Each
client has the messages of a writer of its own; the last one joins when the others have been idle
for a time. Prints as JSON, for each wire: bytes per client and round at the client's interface,
Ethernet headers included, and bytes a day while nobody asks for anything, extrapolated from the
idle time; seconds of a round over the slowest client's answer to its train message; and unique
memory of the client's own processes. All digests must agree. With --folder the run's files are
there.
"""

import argparse
import json
import logging
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.live_run import LiveRun, Place
from benchmarks.faults.network import SERVER_ADDRESS, Network, Traffic, network
from benchmarks.scale.field import SETTINGS
from benchmarks.scale.mixed_run import GATEWAY, MODEL, OPEN, TASK, write_messages
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.settings import Scalar

GATEWAY_PORT = 9100
DAY_SECONDS = 86_400.0
_TRAINED = re.compile(r"answered: train,(?: round \d+,)? ([0-9.]+) s")


def start_gateway(live: LiveRun, place: Place | None, door: str, *options: str) -> None:
    """Start `samara gateway up`, or start it again; it admits the clients of the server."""
    host = door.rsplit(":", 1)[0]
    of_server = ("--superlink", live.address, "--certs", str(live.run / "certificates" / "ca.pem"))
    own = ("--key", str(live.key(GATEWAY)), "--home", str(live.home(GATEWAY)))
    command = ["gateway", "up", *of_server, *own, "--listen", door, "--name", host]
    opened = live.said(GATEWAY).count(OPEN) if GATEWAY in live.clients else 0
    live.start(GATEWAY, [*command, *options], place)
    live.wait(lambda: live.said(GATEWAY).count(OPEN) > opened, "the gateway")


def start_by_stream(
    live: LiveRun, name: str, doors: Sequence[str], place: Place | None, *options: str
) -> None:
    """Start `samara client up --wire stream`, or start it again."""
    command = ["client", "up", "--name", name, "--home", str(live.home(name)), "--wire", "stream"]
    for door in doors:
        command += ["--gateway", door]
    authority = live.home(GATEWAY) / "certificates" / "ca.pem"
    command += ["--key", str(live.key(name)), "--certs", str(authority)]
    live.start(name, [*command, *options], place)


def serve_both(
    live: LiveRun, net: Network, by_stream: Sequence[str], data: Sequence[Path], idle: float
) -> dict[str, Any]:
    """Serve all rounds; returns the figures by wire."""
    door = f"{SERVER_ADDRESS}:{GATEWAY_PORT}"
    start_gateway(live, Place(net.server), door)
    wires = ["stream" if name in by_stream else "flower" for name in live.names]
    idle_bytes: list[Traffic] = []
    for number, name in enumerate(live.names):
        if number == net.clients - 1:  # the run waits for the last one
            time.sleep(30)  # until hellos are over
            before = [net.traffic(n) for n in range(number)]
            time.sleep(idle)
            idle_bytes = [net.traffic(n) - before[n] for n in range(number)]
        what = ("--model", MODEL, "--data", str(data[number]), "--task", TASK)
        options, place = (*what, "--set", "threads=1"), Place(net.client(number))
        if name in by_stream:
            start_by_stream(live, name, [door], place, *options)
        else:
            live.start_client(name, place, *options)
        live.wait(lambda name=name: "trainer ready" in live.said(name), name)  # type: ignore[misc]
    live.wait_for_round(1, 900)
    before, since = [net.traffic(n) for n in range(net.clients)], live.last()
    memory = [memory_of(live, name) for name in live.names]
    while live.last() < int(live.settings["rounds"]):
        live.wait_for_round(live.last() + 1, 300)
    after, rounds = [net.traffic(n) for n in range(net.clients)], live.last() - since
    live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run", 300)
    assert live.server is not None, "it was started above"
    assert live.server.returncode == 0, live.said()[-2000:]
    passed = [late - early for late, early in zip(after, before, strict=True)]
    figures: dict[str, Any] = {"rounds, all digests agree": live.check(), "counted": rounds}
    for wire in sorted(set(wires)):
        mine = [n for n, one in enumerate(wires) if one == wire]
        waited = [idle_bytes[n] for n in mine if n < len(idle_bytes)]
        per_day = DAY_SECONDS / idle
        figures[wire] = {
            "clients": len(mine),
            "bytes up per client and round": sum(passed[n].up for n in mine) / len(mine) / rounds,
            "bytes down per client and round": sum(passed[n].down for n in mine)
            / len(mine)
            / rounds,
            "idle seconds": idle,
            "idle bytes up": [one.up for one in waited],
            "idle bytes down": [one.down for one in waited],
            "idle kB up a day": [round(one.up * per_day / 1000, 1) for one in waited],
            "idle kB down a day": [round(one.down * per_day / 1000, 1) for one in waited],
            "unique MiB without the trainer": [memory[n] for n in mine],
        }
    return figures | {"seconds": round_overhead(live)}


def round_overhead(live: LiveRun) -> dict[str, Any]:
    """Return a round's seconds over the slowest client's answer to its train message."""
    lines = (live.run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "round"]
    seconds = [later["seconds"] - earlier["seconds"] for earlier, later in pairwise(events)]
    trained = [[float(s) for s in _TRAINED.findall(live.said(name))] for name in live.names]
    slowest = [max(answers) for answers in zip(*trained, strict=True)][1:]
    over = [whole - inside for whole, inside in zip(seconds, slowest, strict=True)]
    quartiles = statistics.quantiles(over, n=4)
    return {
        "of a round, median": statistics.median(seconds),
        "of the slowest client's answer, median": statistics.median(slowest),
        "over it, median": statistics.median(over),
        "over it, quartiles": [quartiles[0], quartiles[2]],
        "over it, least and most": [min(over), max(over)],
    }


def memory_of(live: LiveRun, name: str) -> dict[str, float]:
    """Return the unique set size of a client's processes but its trainer, MiB."""
    process = psutil.Process(live.clients[name].pid)
    family = [process, *process.children(recursive=True)]
    found = {}
    for one in family:
        command = " ".join(one.cmdline())
        if "client up" in command and not command.startswith("ip "):
            found["client up"] = one.memory_full_info().uss / 2**20
        elif "samara.devices.live.supernode" in command:
            found["SuperNode"] = one.memory_full_info().uss / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--flower", type=int, default=2)
    parser.add_argument("--stream", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle", type=float, default=720.0)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    by_flower = [f"supernode-{number}" for number in range(arguments.flower)]
    by_stream = [f"stream-{number}" for number in range(arguments.stream)]
    names = [*by_flower, *by_stream]
    if by_flower and by_stream:  # the last one, which is not idle, is of a wire with another
        names = [*by_flower[:-1], *by_stream, by_flower[-1]]
    settings: dict[str, Scalar] = SETTINGS | {
        "rounds": arguments.rounds,
        "cohort.available": len(names),
        "cohort.timeout": arguments.idle + 1800.0,  # the run waits for the last client
    }
    with ExitStack() as stack:
        if arguments.folder:
            folder = arguments.folder
            folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="w")))
        net = stack.enter_context(network(len(names)))
        data = list(write_messages(folder, 0).values())
        ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
        place = Place(net.server)
        live = stack.enter_context(
            LiveRun(folder, settings, names, f"{SERVER_ADDRESS}:8000", place)
        )
        live.start_server()
        live.wait(lambda: live.said().count("may join") >= len(names), "the server")
        print(json.dumps(serve_both(live, net, by_stream, data, arguments.idle), indent=1))


if __name__ == "__main__":
    main()
