"""A folder with files that have the names of Samara's parts, as in other projects."""

from pathlib import Path

CHECK = """
import importlib, sys
import samara
from samara.shared.errors import SamaraError
for part in ("client.app", "server.app", "devices.live.processes", "simulations.commands"):
    importlib.import_module(f"samara.{part}")
for name in ("client", "server", "shared", "devices.mine", "simulations"):
    found = importlib.import_module(name)
    assert found.OWNER == "somebody else", found
print(samara.__file__)
"""
"""Imports Samara, and then the folder's own modules; prints where Samara was found."""


def write_foreign_names(folder: Path, content: str = 'OWNER = "somebody else"\n') -> None:
    """Write modules, packages and a checkout, all with the same content.

    The package `shared` hides the module `shared.py`.
    """
    names = (
        *("client.py", "server.py", "shared.py", "shared/__init__.py"),
        *("devices/mine.py", "simulations/__init__.py"),
        *("samara/server/__init__.py", "samara/samara/__init__.py", "samara/samara/shared.py"),
    )
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
