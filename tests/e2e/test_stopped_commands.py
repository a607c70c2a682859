"""A command that is ended by SIGTERM also ends its child processes."""

import subprocess
import sys
from collections.abc import Sequence

import psutil
import pytest
from helpers import ROOT
from live import attempts
from scenarios import write_rehearsal

MEASURING = "samara.simulations.rehearsal.own_"


def held_child(process: "subprocess.Popen[bytes]", part: str) -> psutil.Process:
    """Return a child process after stopping it, so that only a kill can end it.

    Args:
        process: the process that starts it.
        part: a part of the child's command line.
    """
    for _ in attempts("a child", 120):
        assert process.poll() is None, "it has ended"
        for child in psutil.Process(process.pid).children():
            try:
                if part in " ".join(child.cmdline()):
                    child.suspend()
                    return child
            except psutil.NoSuchProcess:
                continue
    raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (("benchmarks.speed.method_memory",), "--measure"),
        pytest.param(("samara", "rehearse"), MEASURING, marks=pytest.mark.slow),
    ],
    ids=["benchmark", "rehearsal"],
)
def test_a_child_that_is_held_ends_with_its_parent(
    tmp_path_factory: pytest.TempPathFactory, command: Sequence[str], part: str
) -> None:
    words = [sys.executable, "-m", *command]
    if "rehearse" in command:
        folder = tmp_path_factory.mktemp("r")  # a short path, for sockets lie in it
        words += [str(write_rehearsal(folder)), "--out", str(folder / "o")]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(words, cwd=ROOT, stdout=quiet, stderr=quiet) as process:
        child = held_child(process, part)
        process.terminate()
        process.wait(60)
    try:
        gone, _ = psutil.wait_procs([child], 60)
        assert gone == [child]
    finally:
        if child.is_running():
            child.kill()
