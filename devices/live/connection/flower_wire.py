"""Flower's SuperNode as a client's wire: its process, and the executor that answers messages."""

import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from samara.client.app import TRAINER, app
from samara.devices.live.processes import (
    SupervisedProcess,
    check_not_revoked,
    child_environment,
    describe_exit,
    is_run_finished,
    module_command,
)
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import DeviceError
from samara.shared.network.proxies import DIRECT
from samara.shared.storage.files import write_secret

if TYPE_CHECKING:
    from samara.devices.live.connection.executor import Executor

_EXECUTOR_SECONDS = 5.0


class FlowerWire:
    """Runs Flower's SuperNode, and a thread that answers its messages.

    Args:
        settings: settings of the client.

    Raises:
        DeviceError: if the installed Flower is incompatible.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._secret = settings.folder / "executor.secret"
        self._runtime = ""
        self._supernode = SupervisedProcess(
            "the SuperNode",
            self._supernode_command,
            child_environment() | DIRECT,
            explain=describe_exit,
        )
        write_secret(self._secret, secrets.token_hex(32).encode())
        run = partial(self._executor().run, lambda: self._runtime, self._stop)
        self._thread = threading.Thread(target=run, name="executor", daemon=True)
        self._has_ended = False

    @property
    def is_alive(self) -> bool:
        """True while messages of the SuperNode are answered."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the SuperNode and the thread that answers its messages."""
        self._supernode.start()
        self._thread.start()

    def is_finished(self) -> bool:
        """Return whether the server has said that the run is finished.

        Raises:
            RejectedError: if the key was revoked.
        """
        check_not_revoked(self._supernode)
        self._has_ended |= is_run_finished(self._supernode)
        return self._has_ended

    def restart_if_due(self) -> str:
        """Restart the SuperNode if due; return a message if it has ended, otherwise ""."""
        return "" if self._has_ended else self._supernode.restart_if_due()

    def stop(self) -> None:
        """End the SuperNode and stop answering messages."""
        self._stop.set()
        self._supernode.terminate()
        self._supernode.end()
        if self._thread.is_alive():
            self._thread.join(_EXECUTOR_SECONDS)
        self._secret.unlink(missing_ok=True)

    def _executor(self) -> "Executor":
        try:
            from samara.devices.live.connection.executor import Executor
        except ImportError as error:
            raise DeviceError(
                f"this version of Flower is not supported ({error}); run pip install 'flwr==1.41.*'"
            ) from error
        return Executor(app, self._secret.read_bytes())

    def _supernode_command(self) -> Sequence[str]:
        """Return the command of Flower's SuperNode, and store the address of its runtime API."""
        s = self._settings
        trainer = {TRAINER: str(s.socket.absolute())}
        command, self._runtime = supernode_command(s, self._secret, trainer)
        return command


class SuperLinkSettings(Protocol):
    """Settings of a connection to a SuperLink; `ClientSettings` implements them."""

    @property
    def superlink(self) -> str: ...  # noqa: D102

    @property
    def key(self) -> Path | None: ...  # noqa: D102

    @property
    def certificates(self) -> Path | None: ...  # noqa: D102

    @property
    def insecure(self) -> bool: ...  # noqa: D102


def supernode_command(
    to: SuperLinkSettings,
    secret: Path,
    node_config: Mapping[str, str],
    options: Sequence[str] = (),
) -> tuple[list[str], str]:
    """Return the command that starts Flower's SuperNode on a free port of this machine.

    Args:
        to: settings of the connection to the SuperLink.
        secret: path of the file with the secret shared with the executor, in the client's folder.
        node_config: node config for the ClientApp.
        options: options of Samara's wrapper process around the SuperNode.

    Returns:
        The command, and the address at which the SuperNode will serve its runtime API.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        runtime = f"127.0.0.1:{probe.getsockname()[1]}"
    assignments = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
    command = [
        *module_command("connection.supernode", os.getpid(), secret.parent, *options),
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
