"""A clock that is wrong for some processes alone: libfaketime, where it works.

The kernel shifts no wall clock for some processes only (a time namespace has the monotonic clock
and that since boot), so that libfaketime answers when they ask for the time. What waits goes on as
before.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from samara.shared.errors import DeviceError
from samara.shared.files import write_durably

_TRIAL = (
    "import time; begun = time.monotonic(); time.sleep(0.05); "
    "print(time.time(), time.monotonic() - begun)"
)
_TRIAL_SHIFT = -86_400.0
_TRIAL_SECONDS, _TOLERANCE = 30.0, 60.0
_WAIT = (0.04, 10.0)
"""Least and most seconds that a wait of 0.05 s may take."""


class ShiftedClock:
    """The wall clock of processes that are started with its environment.

    Args:
        file: file that the processes read the shift from.
        library: libfaketime.

    Attributes:
        environment: environment variables of the processes.
    """

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.shift(0.0)

    def shift(self, seconds: float) -> None:
        """Let the clock be ahead by so many seconds, within a second from now; behind if < 0."""
        write_durably(self._file, f"{seconds:+.0f}\n".encode())


@cache
def find_library() -> Path:
    """Return a libfaketime that shifts the time and leaves waiting alone, by trying it.

    Raises:
        DeviceError: if there is none.
    """
    tried = []
    for library in _installed():
        if _works(library):
            return library
        tried.append(str(library))
    found = f"; {', '.join(tried)} disturbs programs that wait" if tried else ""
    raise DeviceError(
        "a clock that is wrong for one client alone takes libfaketime: "
        f"pip install 'samara-fl[rehearse]'{found}"
    )


def _installed() -> Iterator[Path]:
    """Return the files of libfaketime: of the Python package of this name, and of the system."""
    package = find_spec("libfaketime")
    for folder in package.submodule_search_locations or () if package else ():
        yield from sorted(Path(folder).glob("vendor/libfaketime/src/libfaketime.so.1"))
    yield from sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def _works(library: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        clock = ShiftedClock(Path(folder) / "shift", library)
        clock.shift(_TRIAL_SHIFT)
        try:
            done = subprocess.run(
                [sys.executable, "-S", "-c", _TRIAL],
                env={**os.environ, **clock.environment},
                capture_output=True,
                text=True,
                timeout=_TRIAL_SECONDS,
                check=True,
            )
            said, waited = map(float, done.stdout.split())
        except (OSError, ValueError, subprocess.SubprocessError):
            return False
    shifted = abs(said - time.time() - _TRIAL_SHIFT) < _TOLERANCE
    return shifted and _WAIT[0] <= waited <= _WAIT[1]
