"""A separate disk for some processes: a file mounted as a file system, which can be filled up."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from samara.devices.hardware.control_groups import GROUP_NAME
from samara.shared.errors import DeviceError

DISK_SUFFIX = ".disk"
_DISK_BYTES = 4 * 2**30
"""Size of the file system in bytes. The file is sparse and grows with the data."""
_SMALLEST_PIECE = 4_096
_PROGRAMS = ("mkfs.ext4", "mount", "umount")
_NUMBERS = count()


class OwnDisk:
    """A mounted file system that no other process writes to.

    Args:
        folder: mount point.

    Attributes:
        folder: mount point.
        device: device numbers, in the form used by control groups.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = _device_of(folder)
        self._filler = folder / "taken"

    def fill(self) -> None:
        """Take all remaining space.

        Raises:
            DeviceError: if the disk is no longer mounted. Without this error, the call would fill
                another disk.
        """
        if _device_of(self.folder) != self.device:
            raise DeviceError(
                f"{self.folder}: the disk of this folder was unmounted; start the rehearsal again"
            )
        with self._filler.open("wb") as file:
            piece = _DISK_BYTES
            end = 0
            while piece >= _SMALLEST_PIECE:
                try:
                    os.posix_fallocate(file.fileno(), end, piece)
                    end += piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2

    def free(self) -> None:
        """Release the space that `fill` took."""
        self._filler.unlink(missing_ok=True)


def _device_of(folder: Path) -> str:
    """Return the device numbers of the file system that contains a folder."""
    device = folder.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def check_own_disk() -> None:
    """Check that this machine can mount a file as a file system.

    Raises:
        DeviceError: if a program or a permission is missing.
    """
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        raise DeviceError(f"{', '.join(missing)}: not installed; install e2fsprogs and mount")
    if os.geteuid() != 0:
        raise DeviceError("only root may mount a file as a disk; run the command as root")


@contextmanager
def own_disk(folder: Path) -> Iterator[OwnDisk]:
    """Mount a new file system at a folder for a ``with`` block.

    Args:
        folder: mount point; created if missing, and empty again afterwards.

    Raises:
        DeviceError: if this machine does not permit the mount.
    """
    check_own_disk()
    folder.mkdir(parents=True, exist_ok=True)
    name = GROUP_NAME.format(owner=os.getpid(), number=next(_NUMBERS))
    image = folder.parent / f"{name}{DISK_SUFFIX}"
    with ExitStack() as undo:
        undo.callback(image.unlink, missing_ok=True)
        with image.open("wb") as file:
            file.truncate(_DISK_BYTES)
        # Without a journal, only the limited processes write to the disk, so their limit applies.
        _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
        undo.callback(unmount, folder)
        folder.chmod(0o700)
        yield OwnDisk(folder)


def unmount(folder: Path) -> None:
    """Unmount a file system, even while an ending process still has a file open in it."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise DeviceError(
            f"`{' '.join(command)}` failed: {lines[0] if lines else result.returncode}; a "
            "separate disk needs root and a kernel with loop devices and ext4"
        )
