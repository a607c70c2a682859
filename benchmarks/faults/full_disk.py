"""A live server whose disk is full, again and again, with another number of bytes left each time.

    python -m benchmarks.faults.full_disk [--timeout 120]

Takes root: the run's folder is a small file system in memory. `samara server up` over TLS with
client keys serves toy clients. After a round the disk is filled up to so many bytes, and then page
by page, twice a second, so that it is full at some moment of a round. When the server has ended, or
goes on for so many seconds, there is room again, and the same command is given if it has ended.
Every round that was acknowledged must be in the ledger with its digest, and the end must be that of
an undisturbed run with the same cohorts.
"""

import argparse
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.faults.network import small_disk
from benchmarks.faults.toy_run import ToyRun

DISK = 32 * 2**20
PAGE = 4096
LEFT = [PAGE * pages for pages in (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)]
"""Bytes that are left on the disk, in the order of the tries."""
ROUNDS = 100_000
"""More than there will be: the script ends the run when it has seen enough."""
_POLL_SECONDS = 0.5


def fill(folder: Path, left: int, pages: int = DISK // PAGE) -> Path:
    """Fill a disk until so many bytes are left, or by so many pages at most.

    Returns:
        The file that takes the room.
    """
    filler = folder / "filler"
    with suppress(OSError), filler.open("ab", buffering=0) as file:
        while pages and shutil.disk_usage(folder).free > left:
            file.write(bytes(PAGE))
            pages -= 1
    return filler


def fill_disks(folder: Path, timeout: float) -> list[str]:
    """Fill the disk of a live server with each number of bytes left; return what happened.

    Raises:
        AssertionError: if an acknowledged round is lost or another, or the run does not go on.
    """
    lines = list[str]()
    with ToyRun(folder, ROUNDS) as run:
        for left in LEFT:
            run.wait_for_round(run.last() + 1)
            before, begun = run.last(), time.monotonic()
            filler = fill(run.run, left)
            while run.server.poll() is None and time.monotonic() < begun + timeout:
                time.sleep(_POLL_SECONDS)
                fill(run.run, 0, 1)
            seconds = time.monotonic() - begun
            if run.server.poll() is None:
                end = f"it went on for {seconds:.0f} s"
            else:
                words = run.said().strip().splitlines()[-1]
                assert run.server.returncode == 1, words
                assert "Traceback" not in words, words
                end = f"it ended after {seconds:.0f} s: {words}"
            filler.unlink()
            lines.append(f"{left} bytes left: {run.last() - before} more rounds, {end}")
            print(lines[-1], flush=True)
            if run.server.poll() is not None:
                run.start_server()
        run.wait_for_round(run.last() + 1)
    return [*lines, run.check(f"the disk full {len(LEFT)} times")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--timeout", type=float, default=120.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="d") as name, small_disk(Path(name) / "run", DISK):
        print(fill_disks(Path(name), arguments.timeout)[-1])


if __name__ == "__main__":
    main()
