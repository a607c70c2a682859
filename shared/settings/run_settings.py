"""Recording of a run's settings in its folder, and comparison with later settings."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.shared.errors import LedgerError
from samara.shared.settings.blobs import file_settings
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import SETTINGS_FILE, Scalar, describe
from samara.shared.storage.files import write_durably


def settings_of_run(config: RunConfig) -> dict[str, Scalar]:
    """Return the settings that a run records, by dotted key: the run id's settings, and files."""
    return {**config.identity(), **file_settings(config)}


def describe_differences(stored: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Describe the settings that differ from recorded ones, each with both values.

    Args:
        stored: recorded settings by dotted key. A setting that the recording version lacked counts
            as `Setting.before`.
        config: present settings.
    """
    here = settings_of_run(config)
    before = {key: setting.before for key, setting in describe(RunConfig).items()}
    return [
        f"{key} ({stored.get(key, before.get(key))} there, {here.get(key, before.get(key))} here)"
        for key in sorted({*here, *stored})
        if stored.get(key, before.get(key)) != here.get(key, before.get(key))
    ]


def record_settings(folder: Path, config: RunConfig) -> None:
    """Write the settings of a run to its folder, unless they are already there.

    Raises:
        LedgerError: if the file cannot be written.
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
    """Check that the settings of a continued run equal its recorded settings.

    A folder without recorded settings passes: its run has not begun, or an earlier version began
    it. The id of the run is checked separately.

    Raises:
        LedgerError: naming each setting that differs, with both values.
    """
    stored = RunConfig.recorded(folder)
    if stored and (different := describe_differences(stored, config)):
        raise LedgerError(
            f"{folder}: the run there was begun with other settings: {', '.join(different)}; a run "
            "keeps its settings: restore them to continue the run, or begin a new run in another "
            "folder"
        )
