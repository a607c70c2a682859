"""A client's record of a problem with its server: silence, the end of the run, or a rejection."""

import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.errors import DeviceError
from samara.shared.storage.kept_file import KeptFile

log = logging.getLogger("samara.device")

CONTACT_FILE = "server.json"
"""File in a client's folder about a problem with the server; absent while the server answers."""


class _ContactFile(KeptFile[dict[str, Any]]):
    """File with the server's address, the time of the record, and a problem or a rejection."""

    name = CONTACT_FILE
    damaged = "{file}: {problem}; this record about the server is ignored"
    is_needed = False
    empty = dict
    error = DeviceError
    style: ClassVar = {"sort_keys": True}

    def _parse(self, value: Any) -> dict[str, Any]:
        _ = value["address"], datetime.fromtimestamp(value["time"], UTC)
        return dict(value)


def note_silence(folder: Path, address: str, problem: str) -> None:
    """Record that a server does not answer; an earlier record about this server is kept.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        problem: reason why there is no answer.
    """
    if _ContactFile(folder).read().get("address") != address:
        _note(folder, address, problem=problem)


def note_end(folder: Path, address: str) -> None:
    """Record that a server has reported the end of its run.

    Args:
        folder: folder of the client.
        address: host:port of the server.
    """
    _note(folder, address)


def note_rejection(folder: Path, address: str, reason: str) -> None:
    """Record that a server has rejected this client for good.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        reason: reason and remedy.
    """
    _note(folder, address, rejected=reason)


def note_answer(folder: Path) -> None:
    """Record that the server answers."""
    try:
        (folder / CONTACT_FILE).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: this file cannot be deleted: %s", folder / CONTACT_FILE, error.strerror)


def describe_contact(folder: Path) -> str:
    """Describe the recorded problem with the server in a sentence; empty while it answers."""
    if not (noted := _ContactFile(folder).read()):
        return ""
    moment = f"{datetime.fromtimestamp(noted['time'], UTC):%Y-%m-%d %H:%M} UTC"
    if "rejected" in noted:
        return f"{noted['address']}, {moment}: {noted['rejected']}"
    if "problem" not in noted:
        return f"the run is finished, as the server {noted['address']} reported on {moment}"
    return (
        f"the server {noted['address']} has not answered since {moment}: {noted['problem']}. The "
        f"server may have finished its run; ask its operator"
    )


def _note(folder: Path, address: str, **more: str) -> None:
    try:
        _ContactFile(folder).write({"address": address, "time": time.time(), **more})
    except DeviceError as error:  # a failure to record stops no work
        log.warning("%s", error)


class Reachability:
    """Tracks whether the server answers, and reports each change.

    Args:
        folder: folder of the client, whose status shows the record.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._is_reachable: bool | None = None  # unknown at first

    def note(self, address: str, problem: str) -> None:
        """Record the outcome of a request.

        Args:
            address: host:port of the server.
            problem: reason why there was no answer; empty if the server answered.
        """
        with self._lock:
            was_reachable = self._is_reachable
            self._is_reachable = not problem
        if was_reachable == (not problem):
            return
        if problem:
            note_silence(self._folder, address, problem)
            log.warning(
                "the server %s does not answer: %s; this client keeps trying. The server may have "
                "finished its run; ask its operator",
                address,
                problem,
            )
        else:
            note_answer(self._folder)  # also clears the record of an earlier SuperNode
            if was_reachable is not None:
                log.info("the server %s answers again", address)
