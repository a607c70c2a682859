"""The check that a shipped app bundle holds the same client code as the installed app.

A SuperLink ships an app, and Flower's own client-app process runs the shipped code. A live client
never runs it: the installed ClientApp answers messages (devices/live/executor.py), and the bundle
is only compared with the installed code, so that a server with other code gets a clear error.
"""

import hashlib
import io
import tomllib
import zipfile
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shared.errors import CodeError, DeviceError

COMPARED_PACKAGES = ("client", "shared")
"""Packages that run on a client or define frames and results."""
_CLIENT_APP = "client.app:app"
_MAX_FILE_BYTES = 10 * 2**20


def check_bundle(bundle: bytes, trusted: Collection[str] = ()) -> None:
    """Check that an app bundle holds the installed client code.

    Args:
        bundle: app bundle (zip) as the SuperLink ships it.
        trusted: SHA-256, in hexadecimal, of bundles that are accepted although they differ.

    Raises:
        CodeError: if the code differs; the message names the first difference and the remedies.
    """
    name = hashlib.sha256(bundle).hexdigest()
    if name in trusted:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            difference = _first_difference(archive)
    except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, OSError) as error:
        difference = f"it cannot be read: {error}"
    if difference:
        raise CodeError(
            f"the server's app differs from the installed one: {difference}; install the "
            f"server's version of Samara, or trust the bundle with --trust {name}"
        )


def installed_hashes() -> dict[str, str]:
    """Return the SHA-256 of every Python file of the compared packages, by path in a bundle."""
    hashes = {}
    for package in COMPARED_PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise DeviceError(f"the package {package} is not installed; install samara-fl again")
        folder = Path(spec.submodule_search_locations[0])
        for path in folder.rglob("*.py"):
            hashes[f"{package}/{path.relative_to(folder).as_posix()}"] = _hash(path.read_bytes())
    return hashes


def _first_difference(archive: zipfile.ZipFile) -> str:
    """Return the first difference between a bundle's code and the installed code, or ""."""
    installed = installed_hashes()
    shipped = {
        entry.filename: entry
        for entry in archive.infolist()
        if entry.filename.endswith(".py") and entry.filename.split("/")[0] in COMPARED_PACKAGES
    }
    for path in sorted(installed.keys() | shipped.keys()):
        if path not in shipped:
            return f"{path} is missing from the bundle"
        if path not in installed:
            return f"{path} is not installed"
        if _hash(_read(archive, shipped[path])) != installed[path]:
            return f"{path} differs"
    entry = archive.getinfo("pyproject.toml") if "pyproject.toml" in archive.namelist() else None
    components = _components(_read(archive, entry)) if entry else {}
    if components.get("clientapp") != _CLIENT_APP:
        return f"its ClientApp is {components.get('clientapp')!r}, not {_CLIENT_APP}"
    return ""


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _MAX_FILE_BYTES:
        raise ValueError(f"{entry.filename} has {entry.file_size} bytes")
    return archive.read(entry)


def _components(pyproject: bytes) -> dict[str, Any]:
    content: Any = tomllib.loads(pyproject.decode())
    for key in ("tool", "flwr", "app", "components"):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
