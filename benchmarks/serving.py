"""A client without a server, and its process of `samara client serve`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samara.devices.live.processes import child_environment
from samara.devices.live.settings import ClientSettings


def write_client(folder: Path, device_settings: dict[str, Any]) -> ClientSettings:
    """Write and return the settings of a new client without a server.

    Args:
        folder: folder of the client, which need not exist. Its path must be short, because it
            contains sockets.
        device_settings: model, data, task and other settings that the device decides.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    settings = ClientSettings(
        name="a",
        folder=folder,
        superlink="127.0.0.1:1",
        client_index=7,
        device_settings=device_settings,
        insecure=True,
    )
    settings.write()
    return settings


@contextmanager
def serving(
    home: Path, *options: str, log: Path = Path(os.devnull)
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Serve a client's models inside the context.

    Args:
        home: folder of the client.
        options: options of the command.
        log: file for the messages of the process.

    Yields:
        The process, and the address at which it serves.

    Raises:
        RuntimeError: if the process does not serve, or ends with an error.
    """
    command = [sys.executable, "-m", "samara", "client", "serve", "--home", str(home), *options]
    environment = child_environment() | {"HF_HUB_OFFLINE": "1"}
    with (
        log.open("w") as messages,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=messages, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("serving on"):
                raise RuntimeError(f"the process does not serve: {log.read_text()}")
            yield process, line.split()[-1]
        finally:
            process.terminate()
            status = process.wait(60)
        if status:
            raise RuntimeError(f"the process ended with status {status}: {log.read_text()}")
