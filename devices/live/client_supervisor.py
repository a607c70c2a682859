"""The supervisor of a live client: it runs the trainer and the wire to the server."""

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Protocol

from samara.client.trainer.remote_trainer import RemoteTrainer
from samara.client.trainer.trainer_socket import address_of
from samara.devices.jetson.nvpmodel import in_power_mode
from samara.devices.live.checks.board_checks import explain_crash
from samara.devices.live.client_folder import (
    UP_LOCK,
    check_is_no_phones,
    check_not_moved,
    client_folder,
)
from samara.devices.live.connection.flower_wire import FlowerWire
from samara.devices.live.connection.stream_wire import StreamWire
from samara.devices.live.dashboard import dashboard
from samara.devices.live.keys import OWN_KEY_FILE, create_key, read_client_index
from samara.devices.live.local_trainer import ANOTHER_SERVES
from samara.devices.live.processes import (
    OUT_OF_MEMORY,
    UNUSABLE_INPUT,
    SupervisedProcess,
    child_environment,
    exclusive_lock,
    module_command,
    status_of_rejection,
)
from samara.devices.live.server_contact import note_end, note_rejection
from samara.devices.live.service_manager import ALIVE, READY, notify_service_manager
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import DeviceError, RejectedError, TrainerError
from samara.shared.network.rejection import RejectionCode, describe_rejection
from samara.shared.storage.files import make_private_folder

log = logging.getLogger("samara.device")

_POLL_SECONDS = 0.5
AFTER_THE_RUN = ("on-data", "always")
"""Values of `personal.when` with which private rounds continue after the run has finished."""


def load_client_index(folder: Path, key: Path | None) -> int:
    """Return the client index of a key file; without one, create a key in the client's folder.

    Args:
        folder: folder of the client; created with mode 0700 if missing.
        key: private key file, or None.

    Raises:
        DeviceError: if the folder or the key cannot be used.
    """
    try:
        make_private_folder(folder)
    except OSError as error:
        raise DeviceError(
            f"{folder}: the client's folder cannot be used: {error.strerror}; give another --home"
        ) from error
    if key is None:
        key = folder / OWN_KEY_FILE
        create_key(key)
    return read_client_index(key)


def dry_run(settings: ClientSettings) -> None:
    """Do one local step and then the preflight; both print their results.

    Raises:
        DeviceError: if the local step or the preflight fails.
    """
    with _locked_folder(settings):
        if status := _run_module("checks.dry_run", settings.folder):
            raise DeviceError(f"the dry run failed with status {status}; its message is above")
        _run_preflight(settings)


def up(settings: ClientSettings, with_dashboard: bool = False) -> None:
    """Run the preflight, then serve until the run finishes or SIGINT or SIGTERM arrives.

    Processes that exit are restarted. After the end of the run, a client continues only if
    `personal.when` demands private rounds on changed data.

    Args:
        settings: settings of the client.
        with_dashboard: whether to draw the status on the terminal instead of printing messages.

    Raises:
        TrainerError: if the path of the folder is too long for a socket.
        DeviceError: if a check fails, another process serves this client, the power mode cannot be
            set, or the trainer cannot be loaded.
        RejectedError: if the key was revoked.
    """
    address_of(settings.socket)  # reject too long a path before a model is loaded
    with _locked_folder(settings):
        log.info("%s: starting", settings.name)
        is_finished = _run_preflight(settings)
        if not is_finished or _works_after_the_run(settings):
            with (
                dashboard(settings.folder) if with_dashboard else nullcontext(),
                in_power_mode(settings.power_mode, settings.folder),
            ):
                is_finished = _ClientSupervisor(settings).serve(is_finished)
        if is_finished:
            log.info("%s: %s", settings.name, describe_end(settings))


def describe_end(settings: ClientSettings) -> str:
    """Tell the owner the uses of a client after its run has finished."""
    is_usual = settings.folder == client_folder(settings.name, None)
    which = f"--name {settings.name}" if is_usual else f"--home {settings.folder}"
    return (
        "the run is finished, and this client keeps its model: ask it with `samara client ask "
        f'"a text" {which}`, have programs ask it with `samara client serve {which}`, write it to '
        f"files with `samara client export {which} --out FOLDER`"
    )


@contextmanager
def _locked_folder(settings: ClientSettings) -> Iterator[None]:
    """Hold the lock of the client's folder during a ``with`` block, and store the settings.

    Raises:
        DeviceError: if another process serves this client, if the client has moved to another
            device, or if the folder belongs to a phone.
    """
    check_is_no_phones(settings.folder)
    with exclusive_lock(settings.folder / UP_LOCK, ANOTHER_SERVES):
        check_not_moved(settings.folder)
        settings.write()
        yield


def _works_after_the_run(settings: ClientSettings) -> bool:
    """Return whether private rounds continue after the run has finished."""
    return settings.device_settings.get("personal.when") in AFTER_THE_RUN


def _run_preflight(settings: ClientSettings) -> bool:
    """Run the preflight; return whether the server reports that the run has finished.

    Raises:
        DeviceError: if a check fails.
        RejectedError: if the key was revoked.
    """
    status = _run_module("checks.preflight", settings.folder)
    if status == status_of_rejection(RejectionCode.REVOKED):
        reason = describe_rejection(RejectionCode.REVOKED)
        note_rejection(settings.folder, settings.server, reason)
        raise RejectedError(reason)
    if status == status_of_rejection(RejectionCode.FINISHED):
        note_end(settings.folder, settings.server)
        return True
    if status == -signal.SIGKILL:
        raise DeviceError(f"the preflight was killed after the line above, {OUT_OF_MEMORY}")
    if status < 0:
        raise DeviceError(
            f"the preflight was killed by signal {-status} after the line above, by "
            f"{explain_crash(-status)}"
        )
    if status:
        raise DeviceError("a check of the preflight failed; follow its remedy above")
    return False


class Wire(Protocol):
    """A connection that carries the server's messages to a client and the answers back."""

    @property
    def is_alive(self) -> bool: ...  # noqa: D102

    def start(self) -> None: ...  # noqa: D102

    def is_finished(self) -> bool: ...  # noqa: D102

    def restart_if_due(self) -> str: ...  # noqa: D102

    def stop(self) -> None: ...  # noqa: D102


class _ClientSupervisor:
    """A client's trainer under supervision, and the wire that carries its messages."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        parent = str(os.getpid())
        self._trainer = SupervisedProcess(
            "the trainer",
            lambda: module_command("trainer_process", settings.folder, parent),
            child_environment(),
        )

    def serve(self, is_finished: bool) -> bool:
        """Serve until the run finishes or a signal arrives; return whether it has finished.

        Args:
            is_finished: whether the run has already finished, so that only private rounds remain.

        Raises:
            DeviceError: if the trainer cannot be loaded, or the server rejects this client.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        by_stream = self._settings.wire == "stream"
        wire: Wire = (StreamWire if by_stream else FlowerWire)(self._settings)
        try:
            self._await_trainer()
            if not self._stop.is_set():
                if is_finished:
                    self._say_that_private_rounds_go_on()
                else:
                    wire.start()
                notify_service_manager(READY)
            while not self._stop.wait(_POLL_SECONDS):
                if wire.is_alive or is_finished:
                    notify_service_manager(ALIVE)
                if not is_finished and wire.is_finished():
                    is_finished = True
                    note_end(self._settings.folder, self._settings.server)
                    if not _works_after_the_run(self._settings):
                        break
                    self._say_that_private_rounds_go_on()
                of_wire = "" if is_finished else wire.restart_if_due()
                for message in (self._trainer.restart_if_due(), of_wire):
                    if message:
                        log.warning("%s", message)
        except RejectedError as error:
            note_rejection(self._settings.folder, self._settings.server, str(error))
            raise
        finally:
            self._stop_all(wire)
        return is_finished

    def _say_that_private_rounds_go_on(self) -> None:
        log.info(
            "%s: the run is finished; private rounds continue when the data change, until Ctrl-C",
            self._settings.name,
        )

    def _await_trainer(self) -> None:
        """Wait until the trainer is ready or a signal arrives."""
        start = time.monotonic()
        log.info("%s: loading model and data", self._settings.name)
        self._settings.socket.unlink(missing_ok=True)
        self._trainer.start()
        while not self._stop.is_set():
            if self._trainer.exit_status == UNUSABLE_INPUT:
                raise DeviceError("the trainer cannot be loaded; its message is above")
            if message := self._trainer.restart_if_due():
                log.warning("%s", message)
            try:
                with RemoteTrainer(str(self._settings.socket), _POLL_SECONDS) as trainer:
                    status = trainer.status()
                log.info(
                    "%s: trainer ready after %.1f s, %d MiB, client %d",
                    self._settings.name,
                    time.monotonic() - start,
                    status.peak_memory_bytes // 2**20,
                    self._settings.client_index,
                )
                return
            except TrainerError:
                continue

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _stop_all(self, wire: Wire) -> None:
        log.info("stopping")
        self._stop.set()
        self._trainer.terminate()
        wire.stop()
        self._trainer.end()
        self._settings.socket.unlink(missing_ok=True)


def _run_module(module: str, folder: Path) -> int:
    """Run a module of this package to completion and return its exit status."""
    command = module_command(module, folder)
    return subprocess.run(command, env=child_environment(), check=False).returncode
