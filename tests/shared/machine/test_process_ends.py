"""The wait for the end of other processes."""

import subprocess
import sys

import psutil

from samara.shared.machine.process_ends import wait_for_ends

PARENT = """
import os, sys
if child := os.fork():
    print(child, flush=True)
sys.stdin.read()
"""
"""Program of a process that never collects the exit status of its child."""


def test_a_process_has_ended_although_its_status_was_not_collected() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        family = psutil.Process(parent.pid), psutil.Process(int(parent.stdout.readline()))
        assert set(wait_for_ends(family, 0.1)) == set(family)
        family[1].kill()
        assert wait_for_ends(family[1:], 60) == []
        assert family[1].status() == psutil.STATUS_ZOMBIE
        parent.kill()
        assert wait_for_ends(family, 60) == []
