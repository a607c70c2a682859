"""Deletion of data that a client keeps for its owner, and a description of the remaining data."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from samara.client.limits.answer_log import ANSWERS_FILE, read_answers
from samara.client.limits.answered_runs import ANSWERED_FILE
from samara.client.limits.pass_counts import PASSES_FILE
from samara.client.limits.work_costs import COSTS_FILE
from samara.client.protocol.joined_runs import find_run_folder
from samara.client.protocol.resident_trainer import BLOBS_FOLDER
from samara.client.protocol.session_store import VALIDATION_FILE
from samara.client.training.own_examples import OWN_EXAMPLES_FILE
from samara.devices.live.client_folder import MESSAGES_FILE
from samara.devices.live.pause_log import PAUSES_FILE
from samara.devices.live.processes import stopped_client
from samara.shared.errors import DeviceError
from samara.shared.storage.files import sync_folder


class Forgotten(StrEnum):
    """The parts of a client's data that can be deleted."""

    RUN = "run"
    PRIVATE = "private"
    ALL = "all"


class KeptFile(NamedTuple):
    """A file in a client's folder.

    Attributes:
        path: path relative to the folder.
        bytes: size of the file.
    """

    path: str
    bytes: int


def find_files(folder: Path, what: Forgotten, run: str = "") -> list[KeptFile]:
    """Return the files that a deletion would remove.

    The deletion of private data removes the private rounds of all runs, their evaluations, and the
    examples that the owner has taught. The deletion of everything removes all runs and all private
    data. The record of the client's answers in a run always stays, so that the client does not
    answer an instruction again.

    Args:
        folder: folder of the client.
        what: the part to delete.
        run: first hex digits of the run id, if a run is to be deleted.

    Raises:
        TrainerError: if no run id, or more than one, begins with these digits.
    """
    match what:
        case Forgotten.RUN:
            chosen = _files_in(find_run_folder(folder, run))
        case Forgotten.PRIVATE:
            chosen = [one for each in folder.glob("runs/*/clients") for one in _files_in(each)]
            chosen += [*folder.glob(f"runs/*/{VALIDATION_FILE}"), folder / OWN_EXAMPLES_FILE]
        case Forgotten.ALL:
            chosen = _files_in(folder / "runs") + _files_in(folder / BLOBS_FOLDER)
            names = OWN_EXAMPLES_FILE, PASSES_FILE, COSTS_FILE, PAUSES_FILE, MESSAGES_FILE
            chosen += [folder / name for name in names]
    return [
        KeptFile(path.relative_to(folder).as_posix(), path.lstat().st_size)
        for path in sorted(chosen)
        if path.name != ANSWERED_FILE and (path.is_file() or path.is_symlink())
    ]


def forget(folder: Path, files: Sequence[KeptFile]) -> None:
    """Delete files of a client that is not running, and any folders left empty.

    On return, the files' names are gone from the disk. Their content remains until the file system
    overwrites it.

    Args:
        folder: folder of the client.
        files: files returned by `find_files`.

    Raises:
        DeviceError: if the client is running, or a file cannot be deleted.
    """
    with stopped_client(folder):
        try:
            for file in files:
                (folder / file.path).unlink(missing_ok=True)
            folders = {folder / inner for file in files for inner in Path(file.path).parents}
            for each in sorted(folders, reverse=True):  # inner folders come first
                if each != folder and each.is_dir() and not any(each.iterdir()):
                    each.rmdir()
                elif each.is_dir():
                    sync_folder(each)
        except OSError as error:
            raise DeviceError(
                f"{error.filename}: this file cannot be deleted: {error.strerror}"
            ) from error


def describe_rest(folder: Path) -> list[str]:
    """Describe the remaining data of a client on this machine and elsewhere, one fact per line.

    Raises:
        TrainerError: if the log of answers cannot be read.
    """
    totals = read_answers(folder).all_totals.values()
    scalars, losses = (sum(getattr(one, name) for one in totals) for name in ("scalars", "losses"))
    remaining = [
        KeptFile(path.relative_to(folder).as_posix(), path.lstat().st_size)
        for path in _files_in(folder)
        if path.suffix != ".lock"
    ]
    lines = [f"{file.path}: {file.bytes:,} bytes" for file in remaining]
    if scalars or losses:
        lines.append(
            f"{ANSWERS_FILE} records {scalars:,} scalars and {losses:,} losses that have left "
            f"this device; they remain with their receivers and in the global model"
        )
    return lines


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
