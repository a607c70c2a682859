"""A client's note of its server: no answer, the end of the run, or that the client was refused."""

import logging
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from samara.shared.errors import DeviceError
from samara.shared.kept_file import KeptFile

log = logging.getLogger("samara.device")

CONTACT_FILE = "server.json"
"""Name of the file in a client's folder; there is none while the server answers."""


@dataclass(frozen=True)
class _Contact:
    """The note about a server; an empty one while it answers.

    Attributes:
        address: host:port of the server; empty while it answers.
        time: time of the note, seconds since 1970.
        problem: why there is no answer; empty once the run is finished.
        rejected: why the server has turned this client away; usually empty.
    """

    address: str = ""
    time: float = 0.0
    problem: str = ""
    rejected: str = ""

    @property
    def moment(self) -> datetime:
        """The time of the note."""
        return datetime.fromtimestamp(self.time, UTC)


class _ContactFile(KeptFile[_Contact]):
    """The file of the note."""

    name = CONTACT_FILE
    damaged = "{file}: {problem}; what was noted of the server is left out"
    is_needed = False
    empty = _Contact
    error = DeviceError
    style: ClassVar = {"sort_keys": True}

    def _to_json(self, content: _Contact) -> Any:
        return {name: value for name, value in asdict(content).items() if value}

    def _parse(self, value: Any) -> _Contact:
        texts = (str(value.get(name, "")) for name in ("problem", "rejected"))
        contact = _Contact(str(value["address"]), float(value["time"]), *texts)
        _ = contact.moment
        return contact


def note_silence(folder: Path, address: str, problem: str) -> None:
    """Note that a server does not answer; what was noted of it first stays.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        problem: why there is no answer.
    """
    if _ContactFile(folder).read().address != address:
        _note(folder, _Contact(address, time.time(), problem))


def note_end(folder: Path, address: str) -> None:
    """Note that a server has said that its run is finished.

    Args:
        folder: folder of the client.
        address: host:port of the server.
    """
    _note(folder, _Contact(address, time.time()))


def note_rejection(folder: Path, address: str, reason: str) -> None:
    """Note that a server has turned this client away for good.

    Args:
        folder: folder of the client.
        address: host:port of the server.
        reason: why, and what to do.
    """
    _note(folder, _Contact(address, time.time(), rejected=reason))


def note_answer(folder: Path) -> None:
    """Note that the server answers."""
    try:
        (folder / CONTACT_FILE).unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: cannot be deleted: %s", folder / CONTACT_FILE, error.strerror)


def describe_contact(folder: Path) -> str:
    """Return a sentence on what was noted of the server; empty while it answers."""
    noted = _ContactFile(folder).read()
    if not noted.address:
        return ""
    moment = f"{noted.moment:%Y-%m-%d %H:%M} UTC"
    if noted.rejected:
        return f"{noted.address}, {moment}: {noted.rejected}"
    if not noted.problem:
        return f"the run is finished, as the server {noted.address} said on {moment}"
    return (
        f"the server {noted.address} has not answered since {moment}: {noted.problem}; "
        "it may have finished its run: its operator knows"
    )


def _note(folder: Path, contact: _Contact) -> None:
    try:
        _ContactFile(folder).write(contact)
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
