"""A server and four clients in network namespaces of their own, over TLS with device keys.

    python benchmarks/field.py --model MINILM --data FOLDER [--clients 4] [--rounds 20]

FOLDER has train, validation and test of a data set with two labels, for example sentences of SST-2;
every client gets a share of its own of each. Takes root. Prints what a client and a round cost:
bytes of the frames, of Flower's messages, and on the wire; seconds, and what they go into, beside
the in-process engine with the same clients and cohorts, whose digest must be the same; memory of every
process; seconds from `client up` to the first report; and what becomes of an unregistered key, of a
revoked one, and of a client that speaks plain text.
"""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from benchmarks.bad_world import again
from benchmarks.live import client_figures, round_seconds
from benchmarks.live_run import LiveRun, Place
from benchmarks.network import SERVER_ADDRESS, Network, Traffic, network
from devices.live.keys import make_key
from server.keys import KEYS_FOLDER, Keys
from server.roster import message_to
from shared.config import Scalar
from shared.ledger.catch_up import CatchUp
from simulations.engine import RUN_ID

SETTINGS: dict[str, Scalar] = {
    "steps": 4,
    "queries": 8,
    "batch": 8,
    "micro-batch": 4,
    "learning-rate": 0.2,
    "adapter.layers": "top:2",
    "adapter.rank": 4,
    "adapter.alpha": 4.0,
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.timeout": 120.0,
    "ledger.snapshot-every": 0,
}
IDLE_SECONDS = 60.0


def deal(data: Path, folder: Path, clients: int, number: int) -> Path:
    """Write a client's share of a data set: every so many-th line of each file."""
    share = folder / f"data-{number}"
    share.mkdir()
    for file in sorted(data.glob("*.jsonl")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (share / file.name).write_text("".join(lines[number::clients]), encoding="utf-8")
    return share


def flower_bytes(message: Message) -> int:
    """Bytes of a message as Flower sends it: its envelope and all objects in it."""
    message.metadata.__dict__["_run_id"] = RUN_ID
    objects = get_all_nested_objects(message)
    return int(message_to_proto(message).ByteSize()) + sum(
        len(identifier) + len(part.deflate()) for identifier, part in objects.items()
    )


def serve_the_field(live: LiveRun, net: Network, shares: list[Path], model: str) -> dict[str, Any]:
    """Serve all rounds; returns the figures."""
    live.start_server()
    live.wait(lambda: live.said().count("may join") == len(live.names), "the server")
    begun = time.monotonic()
    for number, (name, share) in enumerate(zip(live.names, shares, strict=True)):
        options = ["--model", model, "--data", str(share), "--task", "sst2"]
        live.start_client(name, Place(net.client(number)), *options, "--set", "threads=1")
    live.wait_for_round(1, 900)
    first = time.monotonic() - begun
    before, since = [net.traffic(n) for n in range(net.clients)], live.last()
    while live.last() < int(live.settings["rounds"]):
        live.wait_for_round(live.last() + 1, 300)
    after, rounds = [net.traffic(n) for n in range(net.clients)], live.last() - since
    assert live.server is not None, "it was started above"
    live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run", 300)
    assert live.server.returncode == 0, live.said()[-2000:]
    traffic = [late - early for late, early in zip(after, before, strict=True)]
    return {
        "seconds_from_client_up_to_the_end_of_round_1": first,
        "rounds": live.check(),
        "bytes_per_client_round": bytes_of(live, traffic, rounds),
        "round_seconds": round_seconds(live.run),
        "training_seconds": training_seconds(live),
        "clients": {name: client_figures(live.home(name)) for name in live.names},
    }


def bytes_of(live: LiveRun, traffic: list[Traffic], rounds: int) -> dict[str, dict[str, float]]:
    """What a client sends and gets in a round: the frames, Flower's messages, the wire."""
    counts = [figures for event in live.rounds.values() for figures in event["clients"].values()]
    up = statistics.mean(count["bytes_up"] for count in counts)
    down = statistics.mean(count["bytes_down"] for count in counts)
    asked = message_to(1, "train", "10", bytes(100), CatchUp(b"", bytes(round(down) - 100)), 60.0)
    from client.app import _reply

    answer = _reply(bytes(round(up)), asked)
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


def training_seconds(live: LiveRun) -> dict[str, float]:
    """Of the messages that ask for training: from a client's taking one to its having answered."""
    told = [
        float(found[1])
        for name in live.names
        for found in re.finditer(r"answered: train, round \d+, ([0-9.]+) s", live.said(name))
    ]
    return {"median": statistics.median(told), "most": max(told)}


def idle(live: LiveRun, net: Network) -> dict[str, float]:
    """Bytes a second over the interface of a client that nobody asks for anything."""
    before = net.traffic(0)
    time.sleep(IDLE_SECONDS)
    passed = net.traffic(0) - before
    return {kind: count / IDLE_SECONDS for kind, count in asdict(passed).items()}


def turned_away(live: LiveRun, net: Network) -> dict[str, str]:
    """What an unregistered key, a revoked one and plain text come to, in the words that are said."""
    keys = Keys(live.run / KEYS_FOLDER)
    stranger, revoked = live.folder / "stranger.key", live.names[0]
    make_key(stranger)
    live.clients[revoked].terminate()
    live.clients[revoked].wait()
    keys.revoke(revoked)
    live.settings["rounds"] = int(live.settings["rounds"]) + 1
    return {
        "unregistered": refusal_of(live, net, stranger),
        "revoked": refusal_of(live, net, live.key(revoked)),
        "plain text": plain_text(live, net),
    }


def refusal_of(live: LiveRun, net: Network, key: Path) -> str:
    """What the server and a client say when it comes with a key."""
    name, said = key.stem, live.folder / f"{key.stem}-again.said"
    with said.open("wb") as words:
        client = subprocess.Popen(
            client_command(live, net, live.folder / f"{name}-again", ["--key", str(key)]),
            stdout=words,
            stderr=words,
        )
    live.wait(lambda: "turned away" in said.read_text() or client.poll() is not None, name, 120)
    client.terminate()
    client.wait()
    lines = [line for line in said.read_text().splitlines() if "turned away" in line]
    return lines[-1] if lines else said.read_text()[-500:]


def client_command(live: LiveRun, net: Network, home: Path, options: list[str]) -> list[str]:
    return [
        *net.client(0),
        *live.python("client", "up", "--name", "x", "--home", str(home)),
        *("--superlink", f"{SERVER_ADDRESS}:8000", *options),
        *("--certs", str(live.run / "certificates" / "ca.pem")),
    ]


def plain_text(live: LiveRun, net: Network) -> str:
    """What a client says that speaks plain text to this server."""
    command = client_command(live, net, live.folder / "plain", ["--insecure"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    at = next(n for n, line in enumerate(lines) if "superlink" in line)
    return " ".join(line.strip() for line in lines[at : at + 2])


def server_memory(live: LiveRun) -> dict[str, float]:
    """Unique set size of the server's processes, MiB."""
    assert live.server is not None, "it was started"
    family = [psutil.Process(live.server.pid)]
    family += family[0].children(recursive=True)
    return {" ".join(each.cmdline())[-60:]: each.memory_full_info().uss / 2**20 for each in family}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    names = [f"client-{number}" for number in range(arguments.clients)]
    settings = SETTINGS | {"rounds": arguments.rounds, "cohort.available": arguments.clients}
    with tempfile.TemporaryDirectory(prefix="w") as name, network(arguments.clients) as net:
        folder = Path(name)
        shares = [deal(arguments.data, folder, len(names), n) for n in range(len(names))]
        place = Place(net.server)
        with LiveRun(folder, settings, names, f"{SERVER_ADDRESS}:8000", place) as live:
            print(json.dumps(serve_the_field(live, net, shares, arguments.model), indent=1))
        begun = time.monotonic()
        print(again(live, settings, arguments.rounds))
        print(f"in process, {json.dumps(round_seconds(folder / 'again'))}")
        print(f"  in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
