"""A client's note of its server: no answer, the end of the run, or that the client was refused."""

import json
import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samara.shared.files import write_durably

log = logging.getLogger("samara.device")

CONTACT_FILE = "server.json"
"""Name of the file in a client's folder; there is none while the server answers."""


def note_silence(folder: Path, address: str, problem: str) -> None:
    """Note that a server does not answer; what was noted of it first stays.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        problem: why there is no answer.
    """
    if _read(folder).get("address") != address:
        _write(folder, {"address": address, "time": time.time(), "problem": problem})


def note_end(folder: Path, address: str) -> None:
    """Note that a server has said that its run is finished.

    Args:
        folder: folder of the client.
        address: host:port of the server.
    """
    _write(folder, {"address": address, "time": time.time()})


def note_rejection(folder: Path, address: str, reason: str) -> None:
    """Note that a server has turned this client away for good.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        reason: why, and what to do.
    """
    _write(folder, {"address": address, "time": time.time(), "rejected": reason})


def note_answer(folder: Path) -> None:
    """Note that the server answers."""
    try:
        (folder / CONTACT_FILE).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", folder / CONTACT_FILE, error.strerror)


def describe_contact(folder: Path) -> str:
    """Return a sentence on what was noted of the server; empty while it answers."""
    noted = _read(folder)
    try:
        moment = f"{datetime.fromtimestamp(noted['time'], UTC):%Y-%m-%d %H:%M} UTC"
        if "rejected" in noted:
            return f"{noted['address']}, {moment}: {noted['rejected']}"
        if "problem" not in noted:
            return f"the run is finished, as the server {noted['address']} said on {moment}"
        return (
            f"the server {noted['address']} has not answered since {moment}: {noted['problem']}; "
            "it may have finished its run: its operator knows"
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return ""


def _read(folder: Path) -> dict[str, Any]:
    """Return what was noted; empty without a file, and for a damaged one."""
    try:
        noted = json.loads((folder / CONTACT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _write(folder: Path, noted: dict[str, Any]) -> None:
    file = folder / CONTACT_FILE
    try:
        write_durably(file, json.dumps(noted, sort_keys=True).encode())
    except OSError as error:  # no work depends on it
        log.warning("%s: cannot be written: %s", file, error.strerror)


class Reachability:
    """A note of whether the server answers, which is said each time that it changes.

    Args:
        folder: folder of the client, whose status shows it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._is_reachable: bool | None = None  # not known yet

    def note(self, address: str, problem: str) -> None:
        """Note how a request went.

        Args:
            address: host:port of the server.
            problem: why there was no answer; empty if there was one.
        """
        with self._lock:
            was_reachable, self._is_reachable = self._is_reachable, not problem
        if was_reachable == (not problem):
            return
        if problem:
            note_silence(self._folder, address, problem)
            log.warning(
                "the server %s does not answer: %s; trying again until it does. It may have "
                "finished its run: its operator knows",
                address,
                problem,
            )
        else:
            note_answer(self._folder)  # also of what an earlier SuperNode noted
            if was_reachable is not None:
                log.info("the server %s answers again", address)
