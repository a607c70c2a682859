"""The folder of a client on this machine, and the names of its files."""

import json
import re
from pathlib import Path

from samara.shared.errors import ConfigError, DeviceError

SETTINGS_FILE = "client.json"
"""Name of the file with the client's settings."""
SOCKET = "trainer.sock"
"""Name of the socket of the client's trainer, while it runs."""
UP_LOCK = "up.lock"
"""Name of the lock file held by whichever command runs the trainer: `up`, `ask` or `serve`."""
PHONE_LOCK = "phone.lock"
"""Name of the lock file held by the process that runs a phone: `phone join` or `phone up`."""
TRAINER_LOCK = "trainer.lock"
"""Name of the lock file held by the client's trainer."""
MOVED_FILE = "moved.json"
"""Name of the file left behind when a client moves to another device."""
JOINED_FILE = "joined.json"
"""Name of the file written when a client joins a run by an invitation."""
MESSAGES_FILE = "up.log"
"""Name of the file that holds the output of the client's processes while the dashboard is drawn."""
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
    """Return the folder of a client's files: ``--home``, or the default folder for its name.

    Raises:
        ConfigError: if the name is invalid, or neither is given.
    """
    if not name and home is None:
        raise ConfigError("--name NAME is missing; or give the folder of the client, --home DIR")
    return (home or Path.home() / ".samara" / check_name(name)).expanduser().absolute()


def check_is_no_phones(folder: Path) -> None:
    """Raise an error if the folder belongs to a phone, so that no board uses it.

    Raises:
        DeviceError: if a phone uses the folder or has used it.
    """
    if (folder / PHONE_LOCK).exists():
        raise DeviceError(f"{folder} is the folder of a phone; give another --name or --home")


def check_is_no_boards(folder: Path) -> None:
    """Raise an error if the folder belongs to a board (`samara client`), so that no phone uses it.

    Raises:
        DeviceError: if a board uses the folder or has used it.
    """
    if (folder / UP_LOCK).exists():
        raise DeviceError(
            f"{folder} is the folder of a client of `samara client`; give another --name or --home"
        )


def check_was_started(folder: Path) -> None:
    """Raise an error if no client was ever started in the folder.

    Raises:
        DeviceError: if the folder has no client settings.
    """
    if not (folder / SETTINGS_FILE).is_file():
        if (folder / JOINED_FILE).is_file():
            raise DeviceError(
                f"{folder}: this client has joined a run but was never started. `samara client "
                "join` printed the command in its last line: `samara client up` with --model, "
                "--data and --task"
            )
        raise DeviceError(
            f"{folder}: no client was started here; check --name or --home, or run `samara client "
            "up` once"
        )


def check_not_moved(folder: Path) -> None:
    """Raise an error if the folder's client has moved to another device.

    Raises:
        DeviceError: if the client has moved.
    """
    file = folder / MOVED_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        moved = f"on {content['time']} to {content['file']}"
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError):
        moved = "to another device"
    raise DeviceError(
        f"{folder}: this client has moved {moved}, and the same client on two devices would answer "
        f"twice; continue on the device that imported that file. Delete {file} only if no device "
        "has imported it"
    )
