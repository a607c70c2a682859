"""The commands of the guide to phones, pasted into a shell as they are written, with few rounds."""

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from documented import FENCED, ROOT, blocks, command_lines, samara_words
from forked import LOADED, command_server
from live import QUIET, attempts

from benchmarks.faults.ports import free_port

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "guides" / "phone.md"
SECONDS = 1200.0
SECONDS_TO_END = 30.0
SAMARA = """#!/bin/sh
case "$1 $2" in
    "server up") set -- "$@" --port {server} --set rounds=1 --set steps=1 --set queries=2 ;;
    "gateway up") set -- "$@" --listen 127.0.0.1:{gateway} ;;
    "phone export") set -- "$@" --delegate portable ;;
esac
{python} -m samara "$@"
status=$?
echo "$1 $2: $status" >> statuses
exit $status
"""
"""A `samara` that makes some commands small, and notes how each has ended."""


def _end(shell: subprocess.Popen[bytes]) -> None:
    """End a shell and what it has started; `server up` ends its SuperLink, given the time to."""
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait()
        try:
            for _ in attempts("the end of what the shell has started", SECONDS_TO_END):
                os.killpg(shell.pid, 0)
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


def test_the_commands_of_the_guide_make_a_run_with_a_phone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("d")  # short: sockets lie in it
    server, gateway = free_port(), free_port()
    (folder / "bin").mkdir()
    shim = folder / "bin" / "samara"
    text = PAGE.read_text(encoding="utf-8")
    block = next(block for block in blocks(text) if "samara phone up" in block)
    script = block
    for written, port in ((":8000", server), (":9100", gateway)):
        assert written in script
        script = script.replace(written, f":{port}")
    environment = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    environment["PATH"] = f"{folder / 'bin'}:{environment['PATH']}"
    with (folder / "said").open("wb") as said, command_server(folder) as python:
        shim.write_text(SAMARA.format(server=server, gateway=gateway, python=shlex.join(python)))
        shim.chmod(0o755)
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = shell.wait(SECONDS)
        finally:
            _end(shell)
    text = (folder / "said").read_text(errors="replace")
    assert status == 0, text[-3000:]
    assert "Traceback" not in text, text
    phone = folder / ".samara" / "phone"
    assert f"the run is finished, and this phone keeps its model in {phone}/runs" in text
    assert "1 phones have heard it" in text
    assert "every digest reproduced" in text
    ran = sorted((folder / "statuses").read_text().splitlines())
    written = filter(None, map(samara_words, command_lines(block)))
    expected = [" ".join(words[:2]) for words in written] + ["phone join"]
    assert ran == sorted(f"{words}: 0" for words in expected)
    assert not list(Path(folder).rglob("*.new"))
    page = (ROOT / "docs/reference/phones.md").read_text(encoding="utf-8")
    (arithmetic,) = [match[3] for match in FENCED.finditer(page) if match[2] == "python"]
    command = [sys.executable, "-c", LOADED + arithmetic]
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=SECONDS)
