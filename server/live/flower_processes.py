"""Functions that find and end a run's Flower processes, including processes of earlier commands."""

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from samara.shared.machine.process_ends import wait_for_ends

SUPERLINK, DATABASE = "samara.server.live.superlink", "superlink.db"
_EARLIER_SUPERLINK = "server.live.superlink"
"""Module of a SuperLink that an earlier version started and that still runs after an update."""
SUPEREXEC, SERVER_APP = "flower-superexec", "flwr-serverapp"
_STOP_SECONDS = 10.0


def find_superlinks(folder: Path) -> list[psutil.Process]:
    """Return the SuperLinks that use a folder's database.

    The result includes SuperLinks that an earlier command started.
    """
    database = str(folder / DATABASE)
    modules = {SUPERLINK, _EARLIER_SUPERLINK}
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if database in (words := process.info["cmdline"] or ()) and not modules.isdisjoint(words)
    ]


def find_programs(folder: Path, *names: str) -> list[psutil.Process]:
    """Return the processes that a folder's SuperLinks have started and still run.

    The function recognises these processes by their working folder, even after their SuperLink has
    ended.

    Args:
        folder: working folder of the SuperLinks.
        names: names of programs; a returned process has one of them in its command line.
    """
    own = os.path.realpath(folder)
    return [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.info["cwd"] == own
        and any(name in " ".join(process.info["cmdline"] or ()) for name in names)
    ]


def end_processes(processes: Sequence[psutil.Process]) -> None:
    """Send SIGTERM to processes, and kill every process that does not end within ten seconds."""
    for process in processes:
        _signal(process, kill=False)
    running = wait_for_ends(processes, _STOP_SECONDS)
    for process in running:
        _signal(process, kill=True)
    wait_for_ends(running, _STOP_SECONDS)


def _signal(process: psutil.Process, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.NoSuchProcess:
        return
