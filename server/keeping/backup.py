"""Backups of a run: consistent copies of its files, even while the run is served.

The ledger is copied up to its last complete record. Entries about later rounds in other files are
left out. Files that only a running server needs are not copied: Flower's database
(docs/decisions/0011), locks, connections and the page's token.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from samara.server.keeping.backup_file import write_backup
from samara.server.live.connections import CONNECTIONS_FILE
from samara.server.live.run_lock import (
    MOVED_FILE,
    SERVER_LOCK,
    check_not_moved,
    is_locked,
    lock_run,
)
from samara.server.live.run_supervisor import FLOWER_FOLDER
from samara.server.restored_run import RESTORED_FILE
from samara.server.rounds.cohort_sampling import COHORT_SECRET_FILE
from samara.server.store import (
    LAYOUT_FILE,
    LEDGER_FOLDER,
    METRICS_FILE,
    NEXT_EVENT_FILE,
    cluster_folders,
    read_layout,
)
from samara.server.watch.dashboard import TOKEN_FILE
from samara.shared.errors import ArchiveError, BlobError, SamaraError
from samara.shared.machine.installed_code import samara_version
from samara.shared.protocol.ledger.copying import copy_ledger
from samara.shared.protocol.ledger.reading import LOCK_FILE
from samara.shared.results.result import RESULT_FILE
from samara.shared.settings.setting import SETTINGS_FILE
from samara.shared.storage.archive import ArchivedFile, is_safe_path
from samara.shared.storage.blob_store import BlobStore, parse_reference
from samara.shared.storage.events import count_parts, is_part, read_events, read_whole_lines
from samara.shared.storage.files import UNFINISHED, write_durably

MANIFEST_FILE = "backup.json"
BLOBS_FOLDER = "blobs"
FORMAT = 1
_SUFFIX = ".backup"
_TRANSIENT = {
    *(LOCK_FILE, SERVER_LOCK, CONNECTIONS_FILE, TOKEN_FILE, MOVED_FILE, RESTORED_FILE),
    MANIFEST_FILE,
}


@dataclass(frozen=True)
class Backup:
    """A finished backup.

    Attributes:
        file: path of the backup.
        rounds: last round of each ledger, keyed by the folder of the run or cluster.
        files: number of files in the backup.
        bytes: size of the backup in bytes.
        secrets: paths, in the backup, of private keys and of secrets for sampling cohorts.
        left_out: paths in the run's folder that are not in the backup, except the files that only
            a running server needs.
        missing: hash of each file that clients need but this machine lacks, keyed by setting.
    """

    file: Path
    rounds: Mapping[str, int]
    files: int
    bytes: int
    secrets: list[str]
    left_out: list[str]
    missing: Mapping[str, str]


def back_up(run: Path, target: Path, moves: bool = False) -> Backup:
    """Write a backup of a run, which may be served at the same time.

    Args:
        run: folder of the run.
        target: output file, or a folder. In a folder, the file is named after run and last round.
        moves: whether the run moves to another host. In this case the run must not be served at the
            same time, and its folder is marked so that no server serves it afterwards.

    Raises:
        SamaraError: if the folder holds no run, a run that has moved, or, with `moves`, a run that
            is served.
        LedgerError: if the run's ledger is damaged.
        ArchiveError: if a file cannot be read or written.
    """
    run = run.resolve()
    target = target.expanduser().absolute()
    check_not_moved(run)
    if not (run / LAYOUT_FILE).exists():
        raise SamaraError(f"{run}: holds no run that has begun: {LAYOUT_FILE} is missing")
    if target.resolve().is_relative_to(run):
        raise ArchiveError(f"{target}: lies in the run's folder; name a file elsewhere")
    if target.exists() and not target.is_dir():
        raise ArchiveError(f"{target}: exists; name a new file")
    if not moves:
        return _write(run, target, moved=False)
    with lock_run(run):
        if served := [lock for lock in _ledger_locks(run) if is_locked(lock)]:
            raise SamaraError(
                f"{served[0]}: a server is still writing to this ledger; stop it first"
            )
        marker = run / MOVED_FILE
        mark = {"time": _now(), "file": str(target)}
        try:  # marked first, so that a crash never leaves two active runs
            write_durably(marker, json.dumps(mark).encode())
            return _write(run, target, moved=True)
        except BaseException:
            marker.unlink(missing_ok=True)
            raise


def _ledger_locks(run: Path) -> list[Path]:
    return [store / LEDGER_FOLDER / LOCK_FILE for store in cluster_folders(run) or [run]]


def _write(run: Path, target: Path, moved: bool) -> Backup:
    place = target if target.is_dir() else target.parent
    try:
        staged = Path(tempfile.mkdtemp(UNFINISHED, f"{run.name}-", place))
    except OSError as error:
        raise ArchiveError(f"{place}: cannot be written: {error.strerror}") from error
    try:
        rounds, left_out = _stage(run, staged)
        missing = _add_blobs(staged)
        taken = {"samara backup": FORMAT, "time": _now(), "samara": samara_version()}
        manifest = json.dumps(taken | {"rounds": rounds, "moved": moved, "run": run.name})
        paths = {path.relative_to(staged).as_posix(): path for path in _files_in(staged)}
        files = [ArchivedFile(MANIFEST_FILE, manifest.encode())]
        files += [ArchivedFile(path, source) for path, source in paths.items()]
        if target.is_dir():
            target /= f"{run.name}-round-{max(rounds.values())}{_SUFFIX}"
        size = write_backup(target, files)
    except OSError as error:
        raise ArchiveError(f"{error.filename or place}: {error.strerror}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    secrets = [path for path in paths if path.endswith((".key", COHORT_SECRET_FILE))]
    return Backup(target, rounds, len(files), size, secrets, left_out, missing)


def _stage(run: Path, staged: Path) -> tuple[dict[str, int], list[str]]:
    """Copy a run's files; return the last round of each ledger, and the paths left out.

    Raises:
        LedgerError: if a ledger is damaged.
        OSError: if a file cannot be read or written.
    """
    stores = {store.relative_to(run).as_posix(): store for store in cluster_folders(run) or [run]}
    rounds = {name: _copy_ledger(store, staged / name) for name, store in stores.items()}
    for name, store in stores.items():  # before the metrics, to which the server moves this event
        with suppress(FileNotFoundError):
            shutil.copy2(store / NEXT_EVENT_FILE, staged / name / NEXT_EVENT_FILE)
    ledgers = [store / LEDGER_FOLDER for store in stores.values()]
    left_out = []
    for path in _files_in(run):
        name = path.relative_to(run).as_posix()
        if any(path.is_relative_to(ledger) for ledger in ledgers) or _is_transient(path, run):
            continue
        if path.is_symlink() or not path.is_file() or not is_safe_path(name):
            left_out.append(name)
        elif path.name != NEXT_EVENT_FILE:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # the server may have deleted the file
                _copy_file(path, staged / name)
    for name, number in rounds.items():
        _cut_events(staged / name, number)
    if "." not in rounds:
        _cut_metrics(staged / METRICS_FILE, min(rounds.values()))
    _leave_out_later_end(staged, rounds)
    return rounds, left_out


def _copy_file(path: Path, target: Path) -> None:
    """Copy a file; if the file is split into parts, copy all parts."""
    if count_parts(path):
        target.write_bytes(read_whole_lines(path))
    else:
        shutil.copy2(path, target)


def _files_in(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path


def _is_transient(path: Path, run: Path) -> bool:
    """Return whether a file is temporary, or is a part of another file and copied with it."""
    in_flower = path.is_relative_to(run / FLOWER_FOLDER)
    is_unfinished = path.suffix == UNFINISHED
    return in_flower or is_unfinished or is_part(path) or path.name in _TRANSIENT


def _copy_ledger(store: Path, target: Path) -> int:
    """Copy the ledger of a run or cluster, if there is one; return its last round."""
    target.mkdir(parents=True, exist_ok=True)
    if not (store / LEDGER_FOLDER).is_dir():
        return 0
    layout = read_layout(store)
    return copy_ledger(store / LEDGER_FOLDER, target / LEDGER_FOLDER, layout).position.round


def _cut_events(store: Path, number: int) -> None:
    """From the copied files, remove the entries about rounds after the ledger's last round."""
    recorded = _cut_metrics(store / METRICS_FILE, number)
    file = store / NEXT_EVENT_FILE
    if file.exists():
        waiting = _read_object(file).get("round")
        if waiting != number or number in recorded:
            file.unlink()


def _cut_metrics(file: Path, number: int) -> set[int]:
    """Remove events of later rounds; return the rounds that have an event."""
    events = read_events(file)
    kept = [event for event in events if event.get("round", 0) <= number]
    if len(kept) < len(events):
        lines = [json.dumps(event, sort_keys=True) + "\n" for event in kept]
        write_durably(file, "".join(lines).encode())
    return {event["round"] for event in kept if event.get("event") == "round"}


def _leave_out_later_end(staged: Path, rounds: Mapping[str, int]) -> None:
    """Remove a copied result that is about a later round than the copied ledger's last round.

    A server writes the result again after the restore. Runs with clusters are left unchanged.
    """
    end = _read_object(staged / RESULT_FILE).get("final_round")
    if "." in rounds and end not in (None, rounds["."]):
        (staged / RESULT_FILE).unlink()


def _add_blobs(staged: Path) -> dict[str, str]:
    """Copy the files that the run's settings name by hash; return the hashes of missing files."""
    missing = {}
    store = BlobStore()
    for key, value in _read_object(staged / SETTINGS_FILE).items():
        try:
            blob = parse_reference(value) if isinstance(value, str) else None
        except BlobError:
            continue
        if blob is None:
            continue
        if source := store.find(blob):
            (staged / BLOBS_FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(source, staged / BLOBS_FOLDER / blob.hex())
        else:
            missing[key] = blob.hex()
    return missing


def _read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
