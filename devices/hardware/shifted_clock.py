"""A wrong wall clock for some processes only, by libfaketime, on machines on which it works.

The kernel cannot shift the wall clock of individual processes (a time namespace covers only the
monotonic and boot-time clocks). libfaketime therefore answers the requests of these processes for
the time. The duration of waits is not affected.
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
from samara.shared.storage.files import write_durably

_TRIAL = (
    "import time; begun = time.monotonic(); time.sleep(0.05); "
    "print(time.time(), time.monotonic() - begun)"
)
_TRIAL_SHIFT = -86_400.0
_TRIAL_SECONDS = 30.0
_TOLERANCE = 60.0
_WAIT = (0.04, 10.0)
"""Accepted minimum and maximum of the measured duration of a 0.05 s wait, in seconds."""


class ShiftedClock:
    """The shiftable wall clock of all processes that are started with `environment`.

    Args:
        file: path of the file from which the processes read the shift.
        library: path of libfaketime.

    Attributes:
        environment: environment variables for the processes.
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
        """Set the seconds by which the clock is ahead; a negative number puts the clock behind.

        The change takes effect within a second.
        """
        write_durably(self._file, f"{seconds:+.0f}\n".encode())


@cache
def find_library() -> Path:
    """Find a libfaketime that passes a test: it shifts the time and does not affect waits.

    Raises:
        DeviceError: if no installed libfaketime passes.
    """
    tried = []
    for library in _installed():
        if _works(library):
            return library
        tried.append(str(library))
    found = f"; the installed {', '.join(tried)} disturbs programs that wait" if tried else ""
    raise DeviceError(
        f"a wrong clock for a single client needs libfaketime; run pip install "
        f"'samara-fl[rehearse]'{found}"
    )


def _installed() -> Iterator[Path]:
    """Yield the files of libfaketime, from the Python package of that name and from the system."""
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
