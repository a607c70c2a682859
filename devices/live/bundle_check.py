"""Which app a device serves: the one whose client half is the code that is installed here.

A SuperLink ships an app, and Flower's own client-app process runs whatever was shipped. Here
nothing of it is run: the installed ClientApp answers (devices/live/executor.py), and the bundle is
only compared with it, so that a server with other code is told so instead of being misunderstood.
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
"""What runs on a device, or gives the frames and numbers their meaning."""
_CLIENT_APP = "client.app:app"
_MAX_FILE_BYTES = 10 * 2**20


def check_bundle(bundle: bytes, trusted: Collection[str] = ()) -> None:
    """Refuse an app that is not this device's.

    Args:
        bundle: as the SuperLink ships it.
        trusted: SHA-256 of bundles, in hexadecimal, that are accepted though they differ.

    Raises:
        CodeError: saying what differs first, and both remedies.
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
            f"the app of the server is not the one installed here: {difference}; install the "
            f"server's version of Samara, or trust the bundle with --trust {name}"
        )


def installed_hashes() -> dict[str, str]:
    """SHA-256 of every Python file of the pinned packages, by its path in a bundle."""
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
    """What differs first between the code in a bundle and the installed code; empty if nothing."""
    installed = installed_hashes()
    shipped = {
        entry.filename: entry
        for entry in archive.infolist()
        if entry.filename.endswith(".py") and entry.filename.split("/")[0] in COMPARED_PACKAGES
    }
    for path in sorted(installed.keys() | shipped.keys()):
        if path not in shipped:
            return f"{path} is missing from it"
        if path not in installed:
            return f"{path} is new in it"
        if _hash(_read(archive, shipped[path])) != installed[path]:
            return f"{path} is another"
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
