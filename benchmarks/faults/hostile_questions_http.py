"""Requests to `samara client serve` that no sound program would send.

    python -m benchmarks.faults.hostile_questions_http [--requests 10000] [--seed 0]

A real process serves the embedded model on loopback, with a token. Broken requests of every kind,
drawn from a seed, come over sockets, and sound questions between them. Each sound one must be
answered; each whole broken one must get the status of its kind and an error of OpenAI's form; the
process must stay, write no traceback, and hold no more memory than before.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.faults.hostile_http_requests import KINDS, TOKEN, Hostile, sound
from devices.live.processes import child_environment
from devices.live.settings import ClientSettings, resolve_device_settings

_WAIT_SECONDS = 120.0
_WARM_UP = 300


class Served(NamedTuple):
    """A process that serves: itself, its port, and the file of its messages."""

    process: "subprocess.Popen[str]"
    port: int
    log: Path

    def resident(self) -> float:
        """Return its memory in MiB."""
        return float(psutil.Process(self.process.pid).memory_info().rss / 2**20)


@contextmanager
def served(place: Path) -> Iterator[Served]:
    """Serve a new client's models with a token, for the duration of a block.

    Args:
        place: empty folder with a short path.
    """
    own = resolve_device_settings("embedded", "messages", "messages", "cpu", ["threads=1"])
    folder, token, log = place / "a", place / "token", place / "log"
    folder.mkdir(mode=0o700)
    ClientSettings(
        name="a",
        folder=folder,
        superlink="127.0.0.1:1",
        client_index=7,
        device_settings=own,
        insecure=True,
    ).write()
    token.write_text(TOKEN)
    command = [sys.executable, "-m", "samara", "client", "serve", "--home", str(folder)]
    environment = child_environment() | {"HF_HUB_OFFLINE": "1"}
    with log.open("w") as messages:
        process = subprocess.Popen(
            [*command, "--port", "0", "--token", str(token)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on"), log.read_text()
        yield Served(process, int(line.rpartition(":")[2]), log)
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def send(port: int, hostile: Hostile) -> tuple[int, bytes] | None:
    """Return status and body of the answer to a request; None if there is none."""
    with socket.create_connection(("127.0.0.1", port), _WAIT_SECONDS) as connection:
        with suppress(ConnectionError):  # who is refused early cannot send the rest
            connection.sendall(hostile.content)
        if hostile.ends:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(connection)
        try:
            answer.begin()
            return answer.status, answer.read()
        except (ConnectionError, http.client.HTTPException):
            return None
        finally:
            answer.close()


def check(name: str, hostile: Hostile, answer: tuple[int, bytes] | None) -> str:
    """Return the outcome of a request.

    Raises:
        AssertionError: if it is not one that the request may have.
    """
    sent = f"{name}: {hostile.content[:300]!r}"
    if answer is None:
        assert not hostile.statuses, f"no answer to {sent}"
        return "none"
    status, body = answer
    assert status < 500, f"{status} {body!r} to {sent}"
    assert not hostile.statuses or status in hostile.statuses, f"{status} {body!r} to {sent}"
    if status >= 400:
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}, f"{body!r} to {sent}"
        assert isinstance(error["message"], str), f"{body!r} to {sent}"
    return str(status)


def attack(place: Path, requests: int, seed: int) -> tuple[Counter[str], float, float, str]:
    """Send hostile requests to a process that serves.

    Args:
        place: empty folder with a short path.
        requests: number of requests after those that warm it up.
        seed: seed of the requests.

    Returns:
        Number of outcomes, by kind and status; memory in MiB before and after; what it logged.

    Raises:
        AssertionError: if an answer is wrong, or the process ends.
    """
    rng, outcomes = np.random.default_rng(seed), Counter[str]()
    with served(place) as server:
        before = 0.0
        for number in range(_WARM_UP + requests):
            if number == _WARM_UP:
                before, outcomes = server.resident(), Counter()
            name = list(KINDS)[number % len(KINDS)]
            hostile = KINDS[name](rng)
            outcomes[f"{name} {check(name, hostile, send(server.port, hostile))}"] += 1
            assert server.process.poll() is None, f"it ended: {server.log.read_text()[-2000:]}"
        after = server.resident()
        assert send(server.port, sound(rng)), "it answers no more"
    return outcomes, before, after, server.log.read_text()


def main() -> None:
    """Print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        outcomes, before, after, log = attack(Path(name), arguments.requests, arguments.seed)
    assert "Traceback" not in log, log
    by_kind: dict[str, list[str]] = {}
    for outcome, count in sorted(outcomes.items()):
        kind, _, status = outcome.rpartition(" ")
        by_kind.setdefault(kind, []).append(f"{status}: {count}")
    for kind, counts in by_kind.items():
        print(f"{kind:14} {', '.join(counts)}")
    print(f"{outcomes.total()} requests; {before:.1f} MiB before, {after:.1f} MiB after")
    print(f"{len(log)} characters logged, no traceback")


if __name__ == "__main__":
    main()
