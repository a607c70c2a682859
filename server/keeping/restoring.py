"""Restoring a run from a backup, on this host or another, so that clients go on with it."""

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samara.server.keeping.backup import BLOBS_FOLDER, FORMAT, MANIFEST_FILE
from samara.server.keeping.backup_file import extract_backup
from samara.server.restored_run import RestoredRun
from samara.server.rounds.event_log import LOST, EventLog, RoundEvent
from samara.server.rounds.releases import RELEASES_FILE, Release, ReleaseLog
from samara.server.store import LEDGER_FOLDER, RunStore, read_layout
from samara.shared.archive import damaged
from samara.shared.blob_store import BlobStore
from samara.shared.errors import ArchiveError, ConfigError, SamaraError
from samara.shared.events import append_event
from samara.shared.files import make_folder, sync_folder
from samara.shared.ledger.reading import read_header
from samara.shared.ledger.recovery import recover
from samara.shared.round_delta import RoundDelta
from samara.shared.run_terms import RunTerms
from samara.shared.settings import SETTINGS_FILE
from samara.shared.step_size import STEP_SIZE_FILE

_UNFINISHED = ".restoring"
_PROBLEM = (
    "the server that this run was restored from may have released it: it is not released again, "
    "and its privacy is counted as spent"
)


class _Manifest(BaseModel):
    """The description of a backup, in a file of its own."""

    model_config = ConfigDict(strict=True)

    format: int = Field(alias="samara backup")
    time: str
    rounds: dict[str, int] = Field(min_length=1)
    moved: bool
    run: str


def restore(file: Path, out: Path, reached: int | None = None) -> RestoredRun:
    """Make the folder of a run from a backup; it is whole or missing.

    A server that went on after the backup was taken may have released rounds with differential
    privacy that are not in it. They are not released again: the rounds up to the one after
    `reached`, which may have been under way, are left empty, and are charged to the budget.

    Args:
        file: file of `back_up`.
        out: folder of the run here; it must be empty or missing.
        reached: last round that the run's earlier server finished; only, and necessarily, for a run
            with differential privacy whose server went on.

    Returns:
        What the run goes on from.

    Raises:
        ArchiveError: if the file is damaged or no backup, or the folder is in use.
        ConfigError: if `reached` is missing, out of place, or before the backup's last round.
        SamaraError: if what is in the backup does not fit together, or cannot be written.
    """
    out = out.expanduser().absolute()
    unfinished = out.with_name(out.name + _UNFINISHED)
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ArchiveError(f"{out}: is not empty; restore into another folder")
        make_folder(out.parent)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        try:
            extract_backup(file, unfinished)
            manifest = _read_manifest(unfinished, file)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            for name, number in manifest.rounds.items():
                _check_ledger(unfinished / name, number, file)
                _charge_lost_releases(unfinished / name, number, reached, manifest)
                restored = RestoredRun(now, manifest.time, number, manifest.moved, reached)
                restored.write(unfinished / name)
            _publish_blobs(unfinished / BLOBS_FOLDER)
            (unfinished / MANIFEST_FILE).unlink()
            unfinished.replace(out)
            sync_folder(out.parent)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise ArchiveError(f"{out}: cannot be written: {error.strerror}") from error
    return restored


def _read_manifest(folder: Path, file: Path) -> _Manifest:
    """Return what a backup says of itself.

    Raises:
        ArchiveError: if it is missing or of a later version.
    """
    try:
        manifest = _Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise damaged(file, "does not hold a run") from error
    if manifest.format != FORMAT:
        raise ArchiveError(
            f"{file}: is of format {manifest.format}; update Samara, which knows {FORMAT}"
        )
    if any(".." in name.split("/") or name.startswith("/") for name in manifest.rounds):
        raise damaged(file, "names a folder outside the run")
    return manifest


def _check_ledger(store: Path, number: int, file: Path) -> None:
    """Raise an error unless a ledger leads to the round that the backup says, or there is none.

    Raises:
        ArchiveError: if it leads elsewhere.
        LedgerError: if it is damaged.
    """
    ledger = store / LEDGER_FOLDER
    reached = 0
    if ledger.is_dir():
        reached = recover(ledger, read_header(ledger), read_layout(store)).position.round
    if reached != number:
        raise damaged(file, f"its ledger ends at round {reached} and not {number}")


def _charge_lost_releases(
    store: Path, number: int, reached: int | None, manifest: _Manifest
) -> None:
    """Charge the releases that may be missing in a backup, and leave their rounds empty.

    Raises:
        ConfigError: if `reached` is missing, out of place, or before the backup's last round.
        SamaraError: if the run cannot be opened or written.
    """
    settings = _read_settings(store)
    terms = RunTerms.of(settings) if settings.get("privacy.mode", "none") != "none" else None
    if terms is None or terms.privacy is None or manifest.moved:
        if reached is not None:
            raise ConfigError(
                "--reached is for a run with differential privacy whose server went on after the "
                "backup was taken; leave it out"
            )
        return
    if reached is None or reached < number:
        raise ConfigError(
            f"this run has differential privacy, its backup ends at round {number}, and its server "
            "went on: say with --reached the last round that it finished, or more if you are not "
            "sure (samara client status shows a client's), so that no privacy is spent twice"
        )
    privacy, layout = terms.privacy, read_layout(store)
    header = read_header(store / LEDGER_FOLDER)
    run = RunStore(store, layout, header, snapshot_every=0)
    try:
        releases = ReleaseLog(store / RELEASES_FILE, privacy.mechanism.rho, 0.0, privacy.delta)
        known = releases.released_rounds
        events = EventLog(run)
        for lost in range(number + 1, min(reached + 1, terms.rounds) + 1):
            if lost not in known:
                releases.add(Release.lost(lost, privacy.mechanism.rho, privacy.delta))
            append_event(store / STEP_SIZE_FILE, {"step": lost})
            delta = RoundDelta(lost, header.track, bytes(8), (), ())
            events.append_round(delta, RoundEvent(round=lost, problem=_PROBLEM), **{LOST: True})
    finally:
        run.close()


def _read_settings(store: Path) -> Mapping[str, Any]:
    file = store / SETTINGS_FILE
    try:
        settings: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SamaraError(f"{file}: cannot be read: {error}") from error
    return settings


def _publish_blobs(folder: Path) -> None:
    """Put the files that the run's settings name into this machine's store."""
    if folder.is_dir():
        for path in folder.iterdir():
            BlobStore().add(path)
        shutil.rmtree(folder)
