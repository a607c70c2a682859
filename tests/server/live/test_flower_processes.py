"""Processes of Flower that outlive their SuperLink are found by their folder and ended."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from samara.server.live.flower_processes import (
    DATABASE,
    SERVER_APP,
    SUPEREXEC,
    SUPERLINK,
    find_superlinks,
)
from samara.server.live.superlink_process import SuperLinkProcess

WAIT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(undo: ExitStack, folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    """Start a process with the name of one of Flower's programs, which waits in a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT, *words],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    undo.enter_context(process)
    undo.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_killed_superlink_has_left_is_ended(tmp_path: Path, undo: ExitStack) -> None:
    folder, other, link = (tmp_path / name for name in ("flower", "other", "link"))
    folder.mkdir()
    other.mkdir()
    link.symlink_to(folder)
    left = [started(undo, folder, name) for name in (SUPEREXEC, SERVER_APP)]
    others = [started(undo, other, SERVER_APP), started(undo, folder, "something")]
    SuperLinkProcess(link, "127.0.0.1", 1, None, 1).stop()
    assert [process.poll() is None for process in left] == [False, False]
    assert [process.poll() is None for process in others] == [True, True]


def test_a_superlink_of_an_earlier_version_is_found(tmp_path: Path, undo: ExitStack) -> None:
    database = str(tmp_path / DATABASE)
    names = (SUPERLINK, "server.live.superlink")
    superlinks = {started(undo, tmp_path, name, "--database", database).pid for name in names}
    started(undo, tmp_path, SUPERLINK, "--database", str(tmp_path / "other" / DATABASE))
    started(undo, tmp_path, "flower-superlink", "--database", database)
    assert {process.pid for process in find_superlinks(tmp_path)} == superlinks
