"""Moving a client to another device through one file that holds the complete client."""

import json
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from samara.devices.live.client_folder import MOVED_FILE, SETTINGS_FILE, check_not_moved
from samara.devices.live.keys import OWN_KEY_FILE, read_client_index
from samara.devices.live.owner.sealed_archive import extract_archive, write_archive
from samara.devices.live.processes import stopped_client
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import DeviceError
from samara.shared.storage.archive import ArchivedFile, is_safe_path
from samara.shared.storage.files import UNFINISHED, make_folder, sync_folder, write_durably

KEY_FILE = "client.key"
"""Name, in the archive, of a key file that lies outside the client's folder."""
CERTIFICATES_FILE = "ca.pem"
"""Name, in the archive, of a certificate file that lies outside the client's folder."""
LEAST_PASSPHRASE = 8
"""Minimum length of a passphrase in characters."""
_TRANSIENT = (".lock", ".sock", ".secret", ".part", ".log", ".before", UNFINISHED)
"""Suffixes of temporary files, which another device cannot use."""


class MovedClient(NamedTuple):
    """The file of a moved client.

    Attributes:
        files: number of files.
        bytes: size of the file.
        left_out: paths in the client's folder that are not in the file.
    """

    files: int
    bytes: int
    left_out: list[str]


def move_client(folder: Path, file: Path, passphrase: str, is_copy: bool = False) -> MovedClient:
    """Write a complete client to a file, and disable the client's folder.

    The file lacks the files that only a running client needs, the files that another device makes
    anew (`schedule-….json`), links, and hidden files.

    Args:
        folder: folder of a client that is not running.
        file: path of the file to write.
        passphrase: passphrase of the encryption.
        is_copy: whether to keep the client usable here.

    Raises:
        DeviceError: if the client is running or has already moved.
        ArchiveError: if the folder cannot be read, or the file cannot be written.
    """
    settings = ClientSettings.read(folder)
    _check_passphrase(passphrase)
    file = file.expanduser().absolute()
    if file.is_relative_to(folder):
        raise DeviceError(
            f"{file}: this file would be in the client's folder; name a file elsewhere"
        )
    if file.exists():
        raise DeviceError(f"{file}: this file exists; name a new file")
    with stopped_client(folder):
        check_not_moved(folder)
        marker = folder / MOVED_FILE
        try:
            if not is_copy:  # before the archive, so that a crash never leaves two clients
                now = datetime.now(UTC).isoformat(timespec="seconds")
                write_durably(marker, json.dumps({"time": now, "file": str(file)}).encode())
            files, left_out = _files_of(folder, settings)
            size = write_archive(file, files, passphrase)
        except BaseException:
            if not file.exists():
                marker.unlink(missing_ok=True)
            raise
    return MovedClient(len(files), size, left_out)


def import_client(file: Path, folder: Path, name: str, passphrase: str) -> ClientSettings:
    """Create a client's folder from the file of a moved client; after an error, no folder is left.

    Args:
        file: file written by `move_client`.
        folder: folder for the client on this device; it must be empty or missing.
        name: new name of the client; empty keeps the earlier name.
        passphrase: passphrase of the encryption.

    Returns:
        The client's settings, with this device's paths for key and certificates.

    Raises:
        DeviceError: if the folder is in use or cannot be written, or the file is not a client's.
        ArchiveError: if the file is damaged, or encrypted with another passphrase.
    """
    _check_passphrase(passphrase)
    unfinished = folder.with_name(folder.name + ".importing")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DeviceError(
                f"{folder}: this folder is not empty; import under another --name, "
                f"or move the folder"
            )
        make_folder(folder.parent)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        try:
            paths = extract_archive(file, unfinished, passphrase)
            settings = _settings_in(unfinished, paths, file)
            local = {"folder": folder, "name": name or settings.name}
            for key in ("key", "certificates"):
                if inside := getattr(settings, key):
                    local[key] = folder / inside
            settings = settings.model_copy(update=local)
            write_durably(unfinished / SETTINGS_FILE, settings.model_dump_json(indent=2).encode())
            (unfinished / SETTINGS_FILE).chmod(0o600)
            unfinished.replace(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DeviceError(f"{folder}: this folder cannot be written: {error.strerror}") from error
    return settings


def _files_of(folder: Path, settings: ClientSettings) -> tuple[list[ArchivedFile], list[str]]:
    """Return the files of a client, and the paths in its folder that are left out."""
    own: dict[str, Path | bytes] = {}
    left_out = []
    moved = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file() or not is_safe_path(name):
            if path.suffix not in _TRANSIENT:
                left_out.append(name)
        elif not _is_transient(path):
            own[name] = path
    for key, new_name in (("key", KEY_FILE), ("certificates", CERTIFICATES_FILE)):
        if (path := getattr(settings, key)) is None:
            continue
        inside = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else ""
        if inside not in own:
            own[new_name], inside = path, new_name
        moved[key] = Path(inside)
    content = settings.model_copy(update=moved).model_dump_json(indent=2).encode()
    own[SETTINGS_FILE] = content
    return [ArchivedFile(path, source) for path, source in own.items()], left_out


def _is_transient(path: Path) -> bool:
    return (
        path.suffix in _TRANSIENT
        or path.name in ("lock", MOVED_FILE)
        or (path.name.startswith("schedule-") and path.suffix == ".json")
    )


def _settings_in(folder: Path, paths: list[str], file: Path) -> ClientSettings:
    """Return the settings among the files of a client, after checking that its key matches them.

    Raises:
        DeviceError: if the settings are missing or damaged, or belong to another key.
    """
    not_a_client = f"{file}: this file does not contain a client; nothing was imported"
    settings = None
    if SETTINGS_FILE in paths:
        with suppress(OSError, ValidationError):
            content = (folder / SETTINGS_FILE).read_bytes()
            settings = ClientSettings.model_validate_json(content)
    if settings is None or MOVED_FILE in paths:
        raise DeviceError(not_a_client)
    for inside in (settings.key, settings.certificates):
        if inside is not None and inside.as_posix() not in paths:
            raise DeviceError(not_a_client)
    key = folder / (settings.key or OWN_KEY_FILE)
    if read_client_index(key) != settings.client_index:
        raise DeviceError(
            f"{file}: the key in this file belongs to another client; nothing was imported"
        )
    return settings


def _check_passphrase(passphrase: str) -> None:
    if len(passphrase) < LEAST_PASSPHRASE:
        raise DeviceError(f"the passphrase must have at least {LEAST_PASSPHRASE} characters")
