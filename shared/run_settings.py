"""The settings that a run was begun with, kept in its folder, and what differs from them later."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.shared.blobs import file_settings
from samara.shared.config import RunConfig
from samara.shared.errors import LedgerError
from samara.shared.files import write_durably
from samara.shared.settings import SETTINGS_FILE, Scalar, describe


def settings_of_run(config: RunConfig) -> dict[str, Scalar]:
    """Return the settings that a run keeps, by dotted key: those of its id and those of files."""
    return {**config.identity(), **file_settings(config)}


def describe_differences(stored: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return the settings that differ from stored ones, each with both values.

    Args:
        stored: settings by dotted key, as `settings_of_run` returned them, perhaps in an earlier
            version; one that is missing has the value of before there was such a setting.
        config: settings of now.
    """
    here = settings_of_run(config)
    before = {key: setting.before for key, setting in describe(RunConfig).items()}
    return [
        f"{key} ({stored.get(key, before.get(key))} there, {here.get(key, before.get(key))} here)"
        for key in sorted({*here, *stored})
        if stored.get(key, before.get(key)) != here.get(key, before.get(key))
    ]


def record_settings(folder: Path, config: RunConfig) -> None:
    """Write the settings of a run to its folder, unless they are there.

    Raises:
        LedgerError: if they cannot be written.
    """
    file = folder / SETTINGS_FILE
    if file.exists():
        return
    text = json.dumps(settings_of_run(config), indent=2, sort_keys=True) + "\n"
    try:
        write_durably(file, text.encode())
    except OSError as error:
        raise LedgerError(f"{file}: cannot be written: {error.strerror}") from error


def check_settings(folder: Path, config: RunConfig) -> None:
    """Refuse to go on with a run under other settings than it was begun with.

    Nothing is said of a folder without the file: that of a run which has not begun, or which an
    earlier version began; the id of the run is checked beside this.

    Raises:
        LedgerError: naming each setting that differs, with both values.
    """
    stored = RunConfig.recorded(folder)
    if stored and (different := describe_differences(stored, config)):
        raise LedgerError(
            f"{folder}: the run there was begun with other settings: {', '.join(different)}; a run "
            "keeps its settings: set them back to go on with it, or begin a new run in another "
            "folder"
        )
