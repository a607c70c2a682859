"""A shortage of memory: another program takes what the processes under a limit need."""

import subprocess
import sys
from contextlib import suppress

from samara.devices.hardware.memory_limit import CgroupLimit

_TAKE = (
    "import sys; open('/proc/self/oom_score_adj', 'w').write('-1000'); "
    "taken = b'1' * int(sys.argv[1]); sys.stdin.read()"
)
"""A program that takes memory until its input ends, and which the kernel does not kill."""
_SHARE = 0.5
"""Share of the memory in use that is taken."""


class MemoryShortage:
    """A shortage of memory under a limit, from its making to its end.

    The limit is lowered to what is in use, as if other programs had taken the rest, and a program
    under the limit takes half as much again, for which the kernel kills the largest of the other
    processes.

    Args:
        limit: the limit.

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
        """Give the memory back."""
        self._program.kill()
        self._program.wait()
        if self._program.stdin is not None:
            with suppress(OSError):
                self._program.stdin.close()
        self._limit.restore()
