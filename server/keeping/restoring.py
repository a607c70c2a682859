"""Restoring a run from a backup, on this host or another, so that clients can continue."""

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
from samara.shared.errors import ArchiveError, ConfigError, SamaraError
from samara.shared.protocol.ledger.reading import read_header
from samara.shared.protocol.ledger.recovery import recover
from samara.shared.protocol.round_delta import RoundDelta
from samara.shared.protocol.step_size import STEP_SIZE_FILE
from samara.shared.settings.setting import SETTINGS_FILE
from samara.shared.storage.archive import damaged
from samara.shared.storage.blob_store import BlobStore
from samara.shared.storage.events import append_event
from samara.shared.storage.files import make_folder, sync_folder
from samara.shared.terms.run_terms import RunTerms

_UNFINISHED = ".restoring"
_PROBLEM = (
    "the earlier server may have released this round: the round is not repeated, and its privacy "
    "cost is counted as spent"
)


class _Manifest(BaseModel):
    """The metadata of a backup, stored as a file inside the backup."""

    model_config = ConfigDict(strict=True)

    format: int = Field(alias="samara backup")
    time: str
    rounds: dict[str, int] = Field(min_length=1)
    moved: bool
    run: str


def restore(file: Path, out: Path, reached: int | None = None) -> RestoredRun:
    """Create a run's folder from a backup; after an error, no folder is left.

    With differential privacy, a server that continued after the backup may have made releases that
    the backup lacks. The restored run does not repeat the rounds of these releases. It leaves them
    empty and charges their cost to the privacy budget. Round `reached` + 1 is the last of them,
    because it may have been in progress.

    Args:
        file: backup written by `back_up`.
        out: folder for the run; it must be empty or missing.
        reached: last round that the earlier server finished. Required for a run with differential
            privacy whose server continued; not allowed otherwise.

    Returns:
        The record of the restored backup.

    Raises:
        ArchiveError: if the file is damaged or not a backup, or the folder is not empty.
        ConfigError: if `reached` is missing, not allowed, or before the backup's last round.
        SamaraError: if the backup is inconsistent, or the folder cannot be written.
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
    """Return the metadata of a backup.

    Raises:
        ArchiveError: if the metadata is missing or of a later version.
    """
    try:
        manifest = _Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise damaged(file, "does not hold a run") from error
    if manifest.format != FORMAT:
        raise ArchiveError(
            f"{file}: has format {manifest.format}, but this Samara supports only format {FORMAT}; "
            "update Samara"
        )
    if any(".." in name.split("/") or name.startswith("/") for name in manifest.rounds):
        raise damaged(file, "names a folder outside the run")
    return manifest


def _check_ledger(store: Path, number: int, file: Path) -> None:
    """Check that a ledger, if there is one, ends with the round that the backup states.

    Raises:
        ArchiveError: if the ledger ends with another round.
        LedgerError: if the ledger is damaged.
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
    """Charge the releases that a backup may lack, and leave their rounds empty.

    Raises:
        ConfigError: if `reached` is missing, not allowed, or before the backup's last round.
        SamaraError: if the run cannot be opened or written.
    """
    settings = _read_settings(store)
    terms = RunTerms.of(settings) if settings.get("privacy.mode", "none") != "none" else None
    if terms is None or terms.privacy is None or manifest.moved:
        if reached is not None:
            raise ConfigError(
                "--reached is only for a run with differential privacy whose server continued "
                "after the backup was taken; leave it out"
            )
        return
    if reached is None or reached < number:
        raise ConfigError(
            f"this run has differential privacy, its backup ends at round {number}, and its server "
            "continued after that. Set --reached to the last round that the server finished, so "
            "that all spent privacy is counted. Give a higher round if you are not sure; "
            "`samara client status` shows a client's round"
        )
    privacy = terms.privacy
    layout = read_layout(store)
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
    """Put the files that the run's settings name into this machine's blob store."""
    if folder.is_dir():
        for path in folder.iterdir():
            BlobStore().add(path)
        shutil.rmtree(folder)
