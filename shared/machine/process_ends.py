"""The wait for the end of other processes."""

import time
from collections.abc import Iterable

import psutil

from samara.shared.network.polling import LEAST_PAUSE


def wait_for_ends(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended; return the processes that run after a time limit.

    A process has ended even if its parent has not collected its exit status. The first process of
    a container may collect the status late or never.

    Args:
        processes: processes of this machine.
        seconds: time limit in seconds.
    """
    running, end = list(processes), time.monotonic() + seconds
    while running and time.monotonic() < end:
        _, alive = psutil.wait_procs(running, LEAST_PAUSE)
        running = [process for process in alive if not _is_zombie(process)]
    return running


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
