"""The wait for the end of other processes."""

import time
from collections.abc import Iterable

import psutil

from samara.shared.network.polling import pause_before_asking

_LONGEST_PAUSE = 0.5


def wait_for_ends(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended; return the processes that run after a time limit.

    A process has ended even if its parent has not collected its exit status. The first process of
    a container may collect the status late or never.

    Args:
        processes: processes of this machine.
        seconds: time limit in seconds.
    """
    running, begun = list(processes), time.monotonic()
    while running and (waited := time.monotonic() - begun) < seconds:
        _, alive = psutil.wait_procs(running, pause_before_asking(waited, _LONGEST_PAUSE))
        running = [process for process in alive if not _is_zombie(process)]
    return running


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
