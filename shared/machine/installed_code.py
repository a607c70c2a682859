"""The version of Samara on this machine, and a hash of the code that runs on clients."""

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samara.shared import DISTRIBUTION

_CLIENT_FOLDERS = ("client", "shared")


def samara_version() -> str:
    """Return the installed version of Samara, or ``checkout`` if the code is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "checkout"


def client_code_hash() -> str:
    """Return a hash of the Python files that a client runs, 12 hexadecimal digits."""
    found = hashlib.sha256()
    for name in _CLIENT_FOLDERS:
        folder = Path(__file__).parents[2] / name
        for path in sorted(folder.rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{name}/{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()[:12]
