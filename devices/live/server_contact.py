"""A client's note of its server: no answer, the end of the run, or that the client was refused."""

import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.errors import DeviceError
from samara.shared.kept_file import KeptFile

log = logging.getLogger("samara.device")

CONTACT_FILE = "server.json"
"""Name of the file in a client's folder; there is none while the server answers."""


class _ContactFile(KeptFile[dict[str, Any]]):
    """The address of the server and the time of the note, and a problem or a rejection."""

    name = CONTACT_FILE
    damaged = "{file}: {problem}; what was noted of the server is left out"
    is_needed = False
    empty = dict
    error = DeviceError
    style: ClassVar = {"sort_keys": True}

    def _parse(self, value: Any) -> dict[str, Any]:
        _ = value["address"], datetime.fromtimestamp(value["time"], UTC)
        return dict(value)


def note_silence(folder: Path, address: str, problem: str) -> None:
    """Note that a server does not answer; what was noted of it first stays.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        problem: why there is no answer.
    """
    if _ContactFile(folder).read().get("address") != address:
        _note(folder, address, problem=problem)


def note_end(folder: Path, address: str) -> None:
    """Note that a server has said that its run is finished.

    Args:
        folder: folder of the client.
        address: host:port of the server.
    """
    _note(folder, address)


def note_rejection(folder: Path, address: str, reason: str) -> None:
    """Note that a server has turned this client away for good.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        reason: why, and what to do.
    """
    _note(folder, address, rejected=reason)


def note_answer(folder: Path) -> None:
    """Note that the server answers."""
    try:
        (folder / CONTACT_FILE).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", folder / CONTACT_FILE, error.strerror)


def describe_contact(folder: Path) -> str:
    """Return a sentence on what was noted of the server; empty while it answers."""
    if not (noted := _ContactFile(folder).read()):
        return ""
    moment = f"{datetime.fromtimestamp(noted['time'], UTC):%Y-%m-%d %H:%M} UTC"
    if "rejected" in noted:
        return f"{noted['address']}, {moment}: {noted['rejected']}"
    if "problem" not in noted:
        return f"the run is finished, as the server {noted['address']} said on {moment}"
    return (
        f"the server {noted['address']} has not answered since {moment}: {noted['problem']}; "
        "it may have finished its run: its operator knows"
    )


def _note(folder: Path, address: str, **more: str) -> None:
    try:
        _ContactFile(folder).write({"address": address, "time": time.time(), **more})
    except DeviceError as error:  # no work depends on it
        log.warning("%s", error)


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
