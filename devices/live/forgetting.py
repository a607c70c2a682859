"""Deletion of what a client keeps for its owner, and what remains of it and why."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from samara.client.protocol.answer_log import ANSWERS_FILE, read_answers
from samara.client.protocol.answered_runs import ANSWERED_FILE
from samara.client.protocol.joined_runs import find_run_folder
from samara.client.protocol.pass_counts import PASSES_FILE
from samara.client.protocol.resident_trainer import BLOBS_FOLDER
from samara.client.protocol.session_store import VALIDATION_FILE
from samara.client.protocol.work_costs import COSTS_FILE
from samara.client.training.own_examples import OWN_EXAMPLES_FILE
from samara.devices.live.client_folder import MESSAGES_FILE
from samara.devices.live.pause_log import PAUSES_FILE
from samara.devices.live.processes import stopped_client
from samara.shared.errors import DeviceError
from samara.shared.files import sync_folder


class Forgotten(StrEnum):
    """A part of what a client keeps, to be deleted."""

    RUN = "run"
    PRIVATE = "private"
    ALL = "all"


class KeptFile(NamedTuple):
    """A file in a client's folder.

    Attributes:
        path: path in the folder.
        bytes: its size.
    """

    path: str
    bytes: int


def find_files(folder: Path, what: Forgotten, run: str = "") -> list[KeptFile]:
    """Return the files that would be deleted.

    Of a run all is deleted but what the client has answered in it, which keeps it from answering
    again. What is private are the private rounds of all runs, what they have been evaluated to, and
    the examples that the client was taught. All is both, of all runs, and what the runs needed.

    Args:
        folder: folder of the client.
        what: what is deleted.
        run: beginning of the run's id in hex, for a run.

    Raises:
        TrainerError: if no run, or more than one, begins so.
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
    """Delete files of a client that does not run, and the folders that are then empty.

    When this returns, their names are gone from the disk; their content is where the file system
    has not yet written over it.

    Args:
        folder: folder of the client.
        files: files of `find_files`.

    Raises:
        DeviceError: if the client runs, or a file cannot be deleted.
    """
    with stopped_client(folder):
        try:
            for file in files:
                (folder / file.path).unlink(missing_ok=True)
            folders = {folder / inner for file in files for inner in Path(file.path).parents}
            for each in sorted(folders, reverse=True):  # the inner ones first
                if each != folder and each.is_dir() and not any(each.iterdir()):
                    each.rmdir()
                elif each.is_dir():
                    sync_folder(each)
        except OSError as error:
            raise DeviceError(f"{error.filename}: cannot be deleted: {error.strerror}") from error


def describe_rest(folder: Path) -> list[str]:
    """Return what remains of a client on this machine and elsewhere, as lines.

    Raises:
        TrainerError: if the log of its answers cannot be read.
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
            f"{ANSWERS_FILE} tells of {scalars:,} scalars and {losses:,} losses that have left "
            "this device; they stay with those who received them, and the global model contains "
            "what was folded into it"
        )
    return lines


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
