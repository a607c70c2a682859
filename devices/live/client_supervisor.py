"""The supervisor of a live client: it runs the trainer, Flower's SuperNode and the executor."""

import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from client.app import TRAINER, app
from client.protocol.remote_trainer import RemoteTrainer
from devices.jetson.nvpmodel import in_power_mode
from devices.live.board_checks import explain_crash
from devices.live.client_folder import UP_LOCK, check_not_moved, client_folder
from devices.live.dashboard import dashboard
from devices.live.keys import OWN_KEY_FILE, create_key, read_client_index
from devices.live.local_trainer import ANOTHER_SERVES
from devices.live.processes import (
    UNUSABLE_INPUT,
    SupervisedProcess,
    check_not_revoked,
    child_environment,
    describe_exit,
    exclusive_lock,
    is_run_finished,
    module_command,
)
from devices.live.server_contact import note_end
from devices.live.service_manager import ALIVE, READY, notify_service_manager
from devices.live.settings import ClientSettings
from shared.errors import DeviceError, TrainerError
from shared.files import make_private_folder, write_secret

if TYPE_CHECKING:
    from devices.live.executor import Executor

log = logging.getLogger("samara.device")

_POLL_SECONDS = 0.5
_EXECUTOR_SECONDS = 5.0
AFTER_THE_RUN = ("on-data", "always")
"""Values of personal.when by which a device has work when the run is finished."""


def load_client_index(folder: Path, key: Path | None) -> int:
    """Return the client index; without a key file, create a key in the client's folder.

    Args:
        folder: folder of the client; created with mode 0700 if missing.
        key: private key file, or None.

    Raises:
        DeviceError: if the folder or the key cannot be used.
    """
    try:
        make_private_folder(folder)
    except OSError as error:
        raise DeviceError(f"{folder}: cannot be used: {error.strerror}; set --home") from error
    if key is None:
        key = folder / OWN_KEY_FILE
        create_key(key)
    return read_client_index(key)


def dry_run(settings: ClientSettings) -> None:
    """Do one local step, then the preflight; both print their results.

    Raises:
        DeviceError: if one of them fails.
    """
    with _locked_folder(settings):
        if status := _run_module("dry_run", settings.folder):
            raise DeviceError(f"the dry run failed with status {status}; its message is above")
        _run_preflight(settings.folder)


def up(settings: ClientSettings, with_dashboard: bool = False) -> None:
    """Run the preflight, then serve until the run is finished, or SIGINT or SIGTERM.

    Processes that end are restarted. A client whose owner wants private rounds when data change
    goes on with them after the end of the run.

    Args:
        settings: settings of the client.
        with_dashboard: whether the status is drawn on the terminal, in place of messages.

    Raises:
        DeviceError: if a check fails, another process serves this client, the power mode cannot be
            set, or the trainer cannot be loaded.
    """
    with _locked_folder(settings):
        log.info("%s: starting", settings.name)
        _run_preflight(settings.folder)
        with (
            dashboard(settings.folder) if with_dashboard else nullcontext(),
            in_power_mode(settings.power_mode, settings.folder),
        ):
            is_finished = _ClientSupervisor(settings).serve()
        if is_finished:
            log.info("%s: %s", settings.name, describe_end(settings))


def describe_end(settings: ClientSettings) -> str:
    """Return what the owner of a client can do when the run is finished."""
    is_usual = settings.folder == client_folder(settings.name, None)
    which = f"--name {settings.name}" if is_usual else f"--home {settings.folder}"
    return (
        "the run is finished, and this client keeps its model: ask it with `samara client ask "
        f'"a text" {which}`, have programs ask it with `samara client serve {which}`, write it to '
        f"files with `samara client export {which} --out FOLDER`"
    )


@contextmanager
def _locked_folder(settings: ClientSettings) -> Iterator[None]:
    """Lock the client's folder for the duration of a block and write the settings to it.

    Raises:
        DeviceError: if another process serves this client, or it has moved to another device.
    """
    with exclusive_lock(settings.folder / UP_LOCK, ANOTHER_SERVES):
        check_not_moved(settings.folder)
        settings.write()
        yield


def _run_preflight(folder: Path) -> None:
    status = _run_module("preflight", folder)
    if status < 0:
        raise DeviceError(
            f"the preflight was killed by signal {-status} after its last line, by "
            f"{explain_crash(-status)}"
        )
    if status:
        raise DeviceError("a check of the preflight failed; follow its remedy above")


class _ClientSupervisor:
    """The supervised processes of a client, and the thread that answers its messages."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings, self._stop = settings, threading.Event()
        self._secret = settings.folder / "executor.secret"
        self._runtime = ""
        parent = str(os.getpid())
        self._trainer = SupervisedProcess(
            "the trainer",
            lambda: module_command("trainer_process", settings.folder, parent),
            child_environment(),
        )
        command = self._supernode_command
        self._supernode = SupervisedProcess(
            "the SuperNode", command, child_environment(), explain=describe_exit
        )

    def serve(self) -> bool:
        """Serve until the run is finished, or SIGINT or SIGTERM; return whether it is finished.

        Raises:
            DeviceError: if the trainer cannot be loaded, or the server turns this client away.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        write_secret(self._secret, secrets.token_hex(32).encode())
        run = partial(self._executor().run, lambda: self._runtime, self._stop)
        executor = threading.Thread(target=run, name="executor", daemon=True)
        children, is_finished = [self._trainer, self._supernode], False
        try:
            self._await_trainer()
            if not self._stop.is_set():
                self._supernode.start()
                executor.start()
                notify_service_manager(READY)
            while not self._stop.wait(_POLL_SECONDS):
                if executor.is_alive():
                    notify_service_manager(ALIVE)
                check_not_revoked(self._supernode)
                if not is_finished and is_run_finished(self._supernode):
                    is_finished = True
                    note_end(self._settings.folder, self._settings.superlink)
                    children.remove(self._supernode)
                    if self._settings.device_settings.get("personal.when") not in AFTER_THE_RUN:
                        break
                    log.info(
                        "%s: the run is finished; private rounds go on when the data change, "
                        "until Ctrl-C",
                        self._settings.name,
                    )
                for child in children:
                    if message := child.restart_if_due():
                        log.warning("%s", message)
        finally:
            self._stop_all(executor)
        return is_finished

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
                with RemoteTrainer(str(self._settings.socket), {}, _POLL_SECONDS) as trainer:
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

    def _executor(self) -> "Executor":
        try:
            from devices.live.executor import Executor
        except ImportError as error:
            raise DeviceError(
                f"this version of Flower is built otherwise ({error}); pip install 'flwr==1.41.*'"
            ) from error
        return Executor(app, self._secret.read_bytes())

    def _supernode_command(self) -> Sequence[str]:
        """Return the command of Flower's SuperNode, and note the address of its runtime API."""
        s = self._settings
        trainer = {TRAINER: str(s.socket.absolute())}
        command, self._runtime = supernode_command(s, self._secret, trainer)
        return command

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _stop_all(self, executor: threading.Thread) -> None:
        log.info("stopping")
        self._stop.set()
        for child in (self._supernode, self._trainer):
            child.terminate()
        for child in (self._supernode, self._trainer):
            child.end()
        if executor.is_alive():
            executor.join(_EXECUTOR_SECONDS)
        for file in (self._secret, self._settings.socket):
            file.unlink(missing_ok=True)


class SuperLinkSettings(Protocol):
    """The settings of a connection to a SuperLink, which `ClientSettings` has."""

    @property
    def superlink(self) -> str: ...  # noqa: D102

    @property
    def key(self) -> Path | None: ...  # noqa: D102

    @property
    def certificates(self) -> Path | None: ...  # noqa: D102

    @property
    def insecure(self) -> bool: ...  # noqa: D102


def supernode_command(
    to: SuperLinkSettings, secret: Path, node_config: Mapping[str, str]
) -> tuple[list[str], str]:
    """Return the command that starts Flower's SuperNode on a free port of this machine.

    Args:
        to: settings of the connection to the SuperLink.
        secret: file of the secret shared with the executor, in the client's folder.
        node_config: node config for the ClientApp.

    Returns:
        The command, and the address of the runtime API that the SuperNode will serve.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        runtime = f"127.0.0.1:{probe.getsockname()[1]}"
    assignments = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
    command = [
        *module_command("supernode", os.getpid(), secret.parent),
        *("--superlink", to.superlink),
        *("--isolation", "process"),
        *("--port", runtime.rpartition(":")[2]),
        *("--superexec-auth-secret-file", str(secret)),
        *("--node-config", assignments),
    ]
    if to.insecure:
        return [*command, "--insecure"], runtime
    if to.certificates:
        command += ["--root-certificates", str(to.certificates)]
    return [*command, "--auth-supernode-private-key", str(to.key)], runtime


def _run_module(module: str, folder: Path) -> int:
    """Run a module of this package to its end and return its exit status."""
    command = module_command(module, folder)
    return subprocess.run(command, env=child_environment(), check=False).returncode
