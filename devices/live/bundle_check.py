"""The difference between a shipped app bundle and the installed app, for the log.

A SuperLink ships an app, and Flower's own client-app process runs the shipped code. A live client
never runs it: the installed ClientApp answers messages (devices/live/executor.py). Whether two
versions understand each other is decided by the version in every frame (shared/wire.py), not here
(docs/decisions/0026).
"""

import hashlib
import io
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samara.shared.errors import DeviceError

COMPARED_PACKAGES = ("client", "shared")
"""Packages that run on a client or define frames and results."""
_CLIENT_APP = "samara.client.app:app"
_MAX_FILE_BYTES = 10 * 2**20


def describe_difference(bundle: bytes) -> str:
    """Return how an app bundle's client code first differs from the installed one; empty if not.

    Args:
        bundle: app bundle (zip) as the SuperLink ships it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            return _first_difference(archive)
    except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, OSError) as error:
        return f"it cannot be read: {error}"


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
