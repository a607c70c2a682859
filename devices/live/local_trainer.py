"""The trainer that answers questions: a running client's trainer, or one started on demand."""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from samara.client.trainer.trainer_socket import open_channel
from samara.devices.live.client_folder import SOCKET, UP_LOCK, check_was_started
from samara.devices.live.processes import (
    UNUSABLE_INPUT,
    child_environment,
    exclusive_lock,
    module_command,
)
from samara.shared.errors import DeviceError, SamaraError, TrainerError
from samara.shared.network.polling import pause_before_asking

log = logging.getLogger("samara.device")

ANOTHER_SERVES = (
    "another `samara client up`, `ask` or `serve` is using this client; end it. To use them "
    "together, start `client up` first"
)
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.5
_START_SECONDS = 300.0
"""Time to wait for a running client's trainer, in seconds; it may be starting or busy."""
_GRACE_SECONDS = 10.0
_WATCH_SECONDS = 2.0
_ABSENCE_SECONDS = 30.0
"""Time without an answer, in seconds, after which the trainer of an ended client is replaced."""


@contextmanager
def find_or_start_trainer(folder: Path) -> Iterator[Path]:
    """Yield the socket of a client's trainer; if none is running, run one until the block ends.

    Args:
        folder: folder of the client.

    Raises:
        DeviceError: if the folder is not a client's, or a trainer cannot be loaded.
        TrainerError: if the client runs, but its trainer does not answer in time.
    """
    check_was_started(folder)
    socket = folder / SOCKET
    end = time.monotonic() + _START_SECONDS
    with ExitStack() as own:
        while not (socket.exists() and _answers(socket, _LOOK_SECONDS)):
            try:
                lock = exclusive_lock(folder / UP_LOCK, ANOTHER_SERVES, _POLL_SECONDS)
                own.enter_context(lock)
            # A client is running, and its trainer is starting, restarting or busy.
            except DeviceError:
                if time.monotonic() < end:
                    continue
                raise TrainerError(
                    f"{folder}: the client runs, but its trainer does not answer; read the "
                    f"client's messages"
                ) from None
            own.enter_context(_started(folder, socket))
            break
        yield socket


@contextmanager
def keep_trainer(folder: Path) -> Iterator[Path]:
    """Yield the socket of a client's trainer; start a trainer if none has answered for 30 s.

    When a client ends, for example after its run, its trainer ends too. With a new trainer on the
    same socket, questions are answered again.

    Args:
        folder: folder of the client.

    Raises:
        DeviceError: as in `find_or_start_trainer`, before the block begins.
        TrainerError: as in `find_or_start_trainer`, before the block begins.
    """
    stop = threading.Event()
    with ExitStack() as held:
        socket = held.enter_context(find_or_start_trainer(folder))
        watcher = threading.Thread(target=_replace_trainer, args=(folder, held, stop), daemon=True)
        watcher.start()
        try:
            yield socket
        finally:
            stop.set()
            watcher.join(_GRACE_SECONDS)


def _replace_trainer(folder: Path, held: ExitStack, stop: threading.Event) -> None:
    """Find or start another trainer whenever none has answered for a while, until told to stop."""
    answered = time.monotonic()
    while not stop.wait(_WATCH_SECONDS):
        if not _answers(folder / SOCKET, _LOOK_SECONDS):
            if time.monotonic() < answered + _ABSENCE_SECONDS:
                continue
            held.close()  # clean up a trainer that was started here
            try:
                held.enter_context(find_or_start_trainer(folder))
            except SamaraError as error:
                log.warning("%s", error)
        answered = time.monotonic()


@contextmanager
def _started(folder: Path, socket: Path) -> Iterator[None]:
    """Run a trainer during a ``with`` block."""
    process = subprocess.Popen(
        module_command("trainer_process", folder, os.getpid()),
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    begun = time.monotonic()
    try:
        while not (socket.exists() and _answers(socket, _POLL_SECONDS)):
            pause = pause_before_asking(time.monotonic() - begun, _POLL_SECONDS)
            try:
                status = process.wait(pause)
            except subprocess.TimeoutExpired:
                continue
            reason = (
                "the message above gives the reason"
                if status == UNUSABLE_INPUT
                else f"status {status}"
            )
            raise DeviceError(f"{folder}: the trainer cannot be loaded; {reason}")
        yield
    finally:
        process.terminate()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(socket: Path, seconds: float) -> bool:
    """Return whether a trainer accepts connections, now or soon."""
    channel = open_channel(socket)
    try:
        grpc.channel_ready_future(channel).result(seconds)
    except grpc.FutureTimeoutError:
        return False
    finally:
        channel.close()
    return True
