"""A server and four clients in network namespaces of their own, over TLS with device keys.

    python -m benchmarks.scale.field --model MINILM --data FOLDER [--clients 4] [--rounds 20]

FOLDER has train, validation and test of a data set with two labels, for example sentences of SST-2;
every client gets a share of its own of each. Takes root. First an unregistered key, a revoked one
and a client that speaks plain text try to join. Then all rounds are served, and the script prints
what a client and a round cost: bytes of the frames, of Flower's messages and on the wire; seconds
and what they go into, beside the in-process engine with the same clients and cohorts, whose digest
must be the same; memory of every process; seconds from `client up` to the first report.
"""

import argparse
import json
import logging
import re
import statistics
import tempfile
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from flwr.app import ConfigRecord, Message, RecordDict

from benchmarks.faults.live_run import LiveRun, Place
from benchmarks.faults.network import SERVER_ADDRESS, Network, Traffic, network
from benchmarks.faults.runs_under_failures import again
from benchmarks.speed.live import client_figures, round_seconds
from samara.devices.live.keys import create_key
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.transport.messages import make_message
from samara.shared.flower_compat import TaskIdentity, get_all_nested_objects, message_to_proto
from samara.shared.ledger.records import CatchUp
from samara.shared.settings import Scalar
from samara.shared.wire import RECORD

SETTINGS: dict[str, Scalar] = {
    "steps": 4,
    "queries": 8,
    "batch": 8,
    "learning-rate": 0.2,
    "adapter.layers": "top:2",
    "adapter.rank": 4,
    "adapter.alpha": 4.0,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.timeout": 600.0,
    "ledger.snapshot-every": 0,
}
IDLE_SECONDS = 60.0
REVOKED = "revoked"


def deal(data: Path, folder: Path, clients: int, number: int) -> Path:
    """Write a client's share of a data set: every so many-th line of each file."""
    share = folder / f"data-{number}"
    share.mkdir()
    for file in sorted(data.glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (share / file.name).write_text("".join(lines[number::clients]), encoding="utf-8")
    return share


def strangers(live: LiveRun, net: Network) -> dict[str, str]:
    """Return the output of clients with an unregistered key, a revoked key, and plain text."""
    unknown = live.folder / "unknown.key"
    create_key(unknown)
    ClientKeys(live.run / KEYS_FOLDER).revoke(REVOKED)
    live.wait(lambda: f"{REVOKED} is refused from now on" in live.said(), "its refusal")
    return {
        "unregistered": refusal_of(live, net, unknown),
        "revoked": refusal_of(live, net, live.key(REVOKED)),
        "plain text": plain_text(live, net),
    }


def refusal_of(live: LiveRun, net: Network, key: Path) -> str:
    """Return the output of a client whose key the server refuses."""
    name = f"with-{key.stem}"
    live.start_client(name, Place(net.client(0)), "--key", str(key))
    live.wait(lambda: "turns this client away" in live.said(name), f"the refusal of {name}", 180)
    live.clients[name].terminate()
    live.clients[name].wait()
    return next(line for line in live.said(name).splitlines() if "turns this client away" in line)


def plain_text(live: LiveRun, net: Network) -> str:
    """Return the output of a client that connects without TLS."""
    live.start_client("plain", Place(net.client(0)), "--insecure")
    status = live.clients["plain"].wait(180)
    assert status == 1, live.said("plain")
    lines = live.said("plain").splitlines()
    at = next(n for n, line in enumerate(lines) if "superlink" in line)
    return " ".join(line.strip() for line in lines[at : at + 2])


def serve_the_field(live: LiveRun, net: Network, shares: list[Path], model: str) -> dict[str, Any]:
    """Serve all rounds; returns the figures."""
    figures: dict[str, Any] = {"turned away": strangers(live, net)}
    for number, (name, share) in enumerate(zip(live.names, shares, strict=True)):
        if number == net.clients - 1:  # the run waits for the last one
            figures["idle, bytes a second at the interface"] = idle(live, net)
        options = ["--model", model, "--data", str(share), "--task", "sst2"]
        live.start_client(name, Place(net.client(number)), *options, "--set", "threads=1")
        live.wait(lambda name=name: "trainer ready" in live.said(name), name)  # type: ignore[misc]
    live.wait_for_round(1, 900)
    before, since = [net.traffic(n) for n in range(net.clients)], live.last()
    while live.last() < int(live.settings["rounds"]):
        live.wait_for_round(live.last() + 1, 300)
    after, rounds = [net.traffic(n) for n in range(net.clients)], live.last() - since
    figures["unique MiB of the server"] = server_memory(live)
    live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run", 300)
    assert live.server is not None, "it was started above"
    assert live.server.returncode == 0, live.said()[-2000:]
    traffic = [late - early for late, early in zip(after, before, strict=True)]
    return figures | {
        "rounds, all digests agree": live.check(),
        "bytes per client and round": bytes_of(live, traffic, rounds),
        "seconds of a round": round_seconds(live.run),
        "seconds of a train message on a client": training_seconds(live),
        "seconds from client up": {name: first_seconds(live.said(name)) for name in live.names},
        "clients": {name: client_figures(live.home(name)) for name in live.names},
    }


def bytes_of(live: LiveRun, traffic: list[Traffic], rounds: int) -> dict[str, dict[str, float]]:
    """Return a client's bytes in a round: frames, Flower's messages, and on the wire."""
    counts = [figures for event in live.rounds.values() for figures in event["clients"].values()]
    up = statistics.mean(count["bytes_up"] for count in counts)
    down = statistics.mean(count["bytes_down"] for count in counts)
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 2**63
    tail = CatchUp(b"", bytes(round(down) - 100))
    asked = make_message(2**63, "train", "10", bytes(100), tail, 60.0)
    content = RecordDict({RECORD: ConfigRecord({"frame": bytes(round(up))})})
    answer = Message(content, reply_to=asked)
    of_all = rounds * len(traffic)
    return {
        "up": {
            "payload": up,
            "flower": flower_bytes(answer),
            "wire": sum(each.up for each in traffic) / of_all,
        },
        "down": {
            "payload": down,
            "flower": flower_bytes(asked),
            "wire": sum(each.down for each in traffic) / of_all,
        },
    }


def flower_bytes(message: Message) -> int:
    """Bytes of a message as Flower sends it: its envelope, and every object in it with its id."""
    envelope = int(message_to_proto(message).ByteSize())
    objects = get_all_nested_objects(message)
    return envelope + sum(len(name) + len(part.deflate()) for name, part in objects.items())


def training_seconds(live: LiveRun) -> dict[str, float]:
    """Return the seconds from a client's train message to its reply."""
    told = [
        float(found[1])
        for name in live.names
        for found in re.finditer(r"answered: train, round \d+, ([0-9.]+) s", live.said(name))
    ]
    return {"median": statistics.median(told), "most": max(told)}


def first_seconds(said: str) -> dict[str, float]:
    """Return the seconds from a client's start to its first events."""

    def moment(what: str) -> datetime:
        line = next(line for line in said.splitlines() if what in line)
        return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")

    begun = moment(" begins")
    marks = {"trainer": "trainer ready", "hello": "answered: hello", "report": "answered: train"}
    return {name: (moment(what) - begun).total_seconds() for name, what in marks.items()}


def idle(live: LiveRun, net: Network) -> dict[str, float]:
    """Bytes a second at the interface of a client that nobody asks for anything."""
    before = net.traffic(0)
    time.sleep(IDLE_SECONDS)
    passed = net.traffic(0) - before
    return {kind: count / IDLE_SECONDS for kind, count in asdict(passed).items()}


def server_memory(live: LiveRun) -> dict[str, float]:
    """Unique set size of the server's processes, MiB."""
    assert live.server is not None, "it was started"
    parts = ("samara.server.live.superlink", "flower-superexec", "flwr-serverapp")
    processes = {part: live.process(live.server, part) for part in parts}
    processes["server up"] = psutil.Process(live.server.pid)
    return {part: each.memory_full_info().uss / 2**20 for part, each in processes.items() if each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    names = [f"client-{number}" for number in range(arguments.clients)]
    settings = SETTINGS | {"rounds": arguments.rounds, "cohort.available": arguments.clients}
    with tempfile.TemporaryDirectory(prefix="w") as name, network(arguments.clients) as net:
        folder = Path(name)
        shares = [deal(arguments.data, folder, len(names), n) for n in range(len(names))]
        place = Place(net.server)
        with LiveRun(folder, settings, names, f"{SERVER_ADDRESS}:8000", place) as live:
            ClientKeys(live.run / KEYS_FOLDER).create(REVOKED)
            live.start_server()
            live.wait(lambda: live.said().count("may join") == len(names) + 1, "the server")
            figures = serve_the_field(live, net, shares, arguments.model)
        print(json.dumps(figures, indent=1), flush=True)
        print(again(live, settings, arguments.rounds))
        print(f"a round in process, clients in turn: {json.dumps(round_seconds(folder / 'again'))}")


if __name__ == "__main__":
    main()
