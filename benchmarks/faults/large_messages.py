"""Memory of a client's processes while its server sends far more than a message of its kind has.

    python -m benchmarks.faults.large_messages [--mebibytes 48]

`samara server up` over TLS and one client with the embedded model, in real processes. The server is
changed: from the second round on, bytes that no client asked for are beside every frame. The peak
memory of the client's SuperNode, of `client up` and of its trainer is read before and after.
"""

import argparse
import re
import tempfile
import textwrap
import time
from pathlib import Path

import psutil

from benchmarks.faults.live_run import ROOT, LiveRun, Place
from benchmarks.faults.ports import free_address

_CLIENT = "client"
_ROUNDS, _SECONDS = 4, 200.0
_CHANGED_SERVER = """
    import os

    import samara.server.transport.messages as messages
    from flwr.app import ConfigRecord

    make_message, made = messages.make_message, []

    def make_large_message(node, message_type, group, *others):
        message = make_message(node, message_type, group, *others)
        made.append(message_type)
        if group.isdigit() and int(group) > 1:
            message.content["more"] = ConfigRecord({"bytes": os.urandom(SIZE)})
        return message

    messages.make_message = make_large_message
"""


def peak_mebibytes(process: psutil.Process) -> int:
    """Return the most resident memory that a process has had, in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None, "the kernel counts it"
    return int(found[1]) // 2**10


def peaks(live: LiveRun) -> dict[str, int]:
    """Return the peak memory of a client's processes, by name, in MiB."""
    up = live.clients[_CLIENT]
    found = {"client up": peak_mebibytes(psutil.Process(up.pid))}
    for part in ("supernode", "trainer_process"):
        if process := live.process(up, part):
            found[part] = peak_mebibytes(process)
    return found


def refused(live: LiveRun) -> int:
    """Return how many messages the client's SuperNode did not fetch."""
    return live.said(_CLIENT).count("could not be fetched")


def measure(folder: Path, mebibytes: int) -> str:
    """Return the peaks before and after large messages, as a line."""
    changed = folder / "changed"
    changed.mkdir()
    text = textwrap.dedent(_CHANGED_SERVER).replace("SIZE", str(mebibytes * 2**20))
    (changed / "sitecustomize.py").write_text(text, encoding="utf-8")
    settings = {
        "rounds": 1000,
        "steps": 1,
        "queries": 2,
        "batch": 4,
        "learning-rate": 0.01,
        "personal.rounds": 0,
        "evaluate.every": 0,
        "data.clients": 1,
        "cohort.available": 1,
        "cohort.minimum": 1,
        "cohort.timeout": 120.0,
        "cohort.empty-rounds": 1000,
    }
    server = Place(environment={"PYTHONPATH": f"{changed}:{ROOT}"})
    with LiveRun(folder, settings, [_CLIENT], free_address(), server) as live:
        live.start_server()
        live.wait(lambda: live.said().count("may join") == 1, "the server")
        live.start_client(_CLIENT, None, "--set", "threads=1")
        live.wait_for_round(1, 600)
        before = peaks(live)
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end and live.last() < _ROUNDS and not refused(live):
            time.sleep(1.0)
        after = peaks(live)
        lines = ", ".join(f"{name} {before.get(name)} → {mib} MiB" for name, mib in after.items())
        rounds, said = live.last(), refused(live)
    return f"{mebibytes} MiB beside a frame: {lines}; {rounds} rounds, {said} messages not fetched"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mebibytes", type=int, default=48)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="w") as name:
        print(measure(Path(name), arguments.mebibytes))


if __name__ == "__main__":
    main()
