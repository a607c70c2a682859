"""The trainer that answers questions: that of a running client, or one that is started for them."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from client.protocol.trainer_socket import open_channel
from devices.live.client_folder import SETTINGS_FILE, SOCKET, UP_LOCK
from devices.live.processes import (
    UNUSABLE_INPUT,
    child_environment,
    exclusive_lock,
    module_command,
)
from shared.errors import DeviceError, TrainerError

ANOTHER_SERVES = (
    "another `samara client up` serves this client, or an `ask` or `serve` that began without it; "
    "end it, or start `client up` first"
)
_LOOK_SECONDS = 1.0
_POLL_SECONDS = 0.5
_START_SECONDS = 300.0
"""Time to wait for the trainer of a running client, which may be starting, restarting or busy."""
_GRACE_SECONDS = 10.0


@contextmanager
def find_or_start_trainer(folder: Path) -> Iterator[Path]:
    """Give the socket of a client's trainer; if none runs, start one until the block ends.

    Args:
        folder: folder of the client.

    Raises:
        DeviceError: if the folder is no client's, or a trainer cannot be loaded.
        TrainerError: if the client runs, and its trainer does not answer in time.
    """
    socket = folder / SOCKET
    if not (folder / SETTINGS_FILE).is_file():
        raise DeviceError(f"{folder}: there is no client; run `samara client up` once")
    end = time.monotonic() + _START_SECONDS
    with ExitStack() as own:
        while not (socket.exists() and _answers(socket, _LOOK_SECONDS)):
            try:
                lock = exclusive_lock(folder / UP_LOCK, ANOTHER_SERVES, _POLL_SECONDS)
                own.enter_context(lock)
            except DeviceError:  # a client runs: its trainer starts, starts again, or is busy
                if time.monotonic() < end:
                    continue
                raise TrainerError(
                    f"{folder}: the client runs, and its trainer does not answer; see its messages"
                ) from None
            own.enter_context(_started(folder, socket))
            break
        yield socket


@contextmanager
def _started(folder: Path, socket: Path) -> Iterator[None]:
    """Run a trainer for the duration of a block."""
    process = subprocess.Popen(
        module_command("trainer_process", folder, os.getpid()),
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not (socket.exists() and _answers(socket, _POLL_SECONDS)):
            try:
                status = process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            reason = "its message is above" if status == UNUSABLE_INPUT else f"status {status}"
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
