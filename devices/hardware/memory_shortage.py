"""A simulated memory shortage: another program takes memory that limited processes need."""

import subprocess
import sys
from contextlib import suppress

from samara.devices.hardware.memory_limit import CgroupLimit

_TAKE = (
    "import sys; open('/proc/self/oom_score_adj', 'w').write('-1000'); "
    "taken = b'1' * int(sys.argv[1]); sys.stdin.read()"
)
"""Program that takes memory until its standard input ends, and that the kernel does not kill."""
_SHARE = 0.5
"""Amount of memory to take, as a share of the memory in use."""


class MemoryShortage:
    """A memory shortage for the processes under a limit; it begins on construction.

    The limit is lowered to the memory in use, as if other programs had taken the rest. Another
    program under the limit then takes half that amount. The kernel therefore kills the largest of
    the other processes under the limit.

    Args:
        limit: memory limit of the processes.

    Raises:
        OSError: if the limit cannot be lowered.
    """

    def __init__(self, limit: CgroupLimit) -> None:
        self._limit = limit
        in_use = limit.lower()
        command = [sys.executable, "-S", "-c", _TAKE, str(round(in_use * _SHARE))]
        self._program = subprocess.Popen(
            limit.command(command), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def end(self) -> None:
        """End the shortage by releasing the memory."""
        self._program.kill()
        self._program.wait()
        if self._program.stdin is not None:
            with suppress(OSError):
                self._program.stdin.close()
        self._limit.restore()
