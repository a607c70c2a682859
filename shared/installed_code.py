"""The version of Samara on this machine, and the hash of its code that runs on clients."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samara.shared import DISTRIBUTION

_CLIENT_FOLDERS = ("client", "shared")


def samara_version() -> str:
    """Return the installed version, or ``checkout`` where the code runs without being installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "checkout"


def client_code_hash() -> str:
    """Return a hash of the Python files of the client and the frames, 12 hexadecimal digits."""
    found = hashlib.sha256()
    for name in _CLIENT_FOLDERS:
        folder = Path(__file__).parents[1] / name
        for path in sorted(folder.rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{name}/{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()[:12]
