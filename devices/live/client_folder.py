"""The folder of a client of this machine, and the names of files in it."""

import re
from pathlib import Path

from shared.errors import ConfigError

SETTINGS_FILE = "client.json"
"""Name of the file with the client's settings."""
SOCKET = "trainer.sock"
"""Name of the socket of the client's trainer, while it runs."""
UP_LOCK = "up.lock"
"""Name of the lock file of whoever runs the client's trainer: `client up`, `ask` or `serve`."""
TRAINER_LOCK = "trainer.lock"
"""Name of the lock file of the client's trainer."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """Return the name if it is a valid folder name.

    Raises:
        ConfigError: if the name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name}: use up to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def client_folder(name: str, home: Path | None) -> Path:
    """Return the folder of a client's files: ``--home``, or that of its name.

    Raises:
        ConfigError: if the name is invalid, or neither is given.
    """
    if not name and home is None:
        raise ConfigError("--name NAME is missing; or give the folder of the client, --home DIR")
    return (home or Path.home() / ".samara" / check_name(name)).expanduser().absolute()
