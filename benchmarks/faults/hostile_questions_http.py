"""Invalid requests to `samara client serve`, and their outcomes.

    python -m benchmarks.faults.hostile_questions_http [--requests 10000] [--seed 0]

A real process serves the embedded model on loopback, with a token. It receives invalid requests of
every kind, chosen by a seed, over sockets, with valid questions between them. Every valid question
must be answered. Every complete invalid request must get the status of its kind, and an error in
OpenAI's format. The process must not end, must write no traceback, and must use little more memory
than before.
"""

import http.client
import json
import os
import socket
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from benchmarks.arguments import arguments
from benchmarks.faults.hostile_http_requests import KINDS, TOKEN, Hostile, sound
from benchmarks.serving import serving, write_client
from samara.devices.live.settings import resolve_device_settings

_WAIT_SECONDS = 120.0
_WARM_UP = 300


def send(port: int, hostile: Hostile) -> tuple[int, bytes] | None:
    """Return status and body of the answer to a request; None without an answer."""
    with socket.create_connection(("127.0.0.1", port), _WAIT_SECONDS) as connection:
        with suppress(ConnectionError):  # a request may be refused before all is sent
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
    """Return the outcome of a request, after checking it.

    Raises:
        AssertionError: if the request does not allow this outcome.
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
    """Send hostile requests to a serving process.

    Args:
        place: empty folder with a short path.
        requests: number of requests after the warm-up.
        seed: seed of the requests.

    Returns:
        Number of outcomes by kind and status, memory in MiB before and after, and the process's
        log.

    Raises:
        AssertionError: if an answer is wrong, or the process ends.
    """
    rng, outcomes, before = np.random.default_rng(seed), Counter[str](), 0.0
    own = resolve_device_settings("embedded", "messages", "messages", "cpu", ["threads=1"])
    home, token, log = write_client(place / "a", own).folder, place / "token", place / "log"
    token.write_text(TOKEN)
    with serving(home, "--port", "0", "--token", str(token), log=log) as (process, address):
        port, resident = int(address.rpartition(":")[2]), psutil.Process(process.pid)
        for number in range(_WARM_UP + requests):
            if number == _WARM_UP:
                before, outcomes = resident.memory_info().rss / 2**20, Counter()
            name = list(KINDS)[number % len(KINDS)]
            hostile = KINDS[name](rng)
            outcomes[f"{name} {check(name, hostile, send(port, hostile))}"] += 1
            assert process.poll() is None, f"the process ended: {log.read_text()[-2000:]}"
        after, last = resident.memory_info().rss / 2**20, sound(rng)
        check("sound", last, send(port, last))
    return outcomes, before, after, log.read_text()


def main() -> None:
    """Attack, and print the outcomes."""
    given = arguments(__doc__, requests=10_000, seed=0)
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="w") as name:
        outcomes, before, after, log = attack(Path(name), given.requests, given.seed)
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
