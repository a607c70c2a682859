"""Scenario files: look-up by path, or by name if they are shipped with Samara, and reading."""

import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from samara.shared.errors import ConfigError

_FROM_FOLDER = ("./", "../")
_MAX_BYTES = 2**20
_FORMS = "give a TOML file, or the name of a shipped scenario"


def shipped_scenarios() -> dict[str, Path]:
    """Return the files of the shipped scenarios by name."""
    folder = Path(str(resources.files("samara.simulations"))) / "scenarios"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def scenario_file(scenario: Path | None) -> Path:
    """Return the path of a scenario, given its path or the name of a shipped scenario.

    Raises:
        ConfigError: if there is no such scenario.
    """
    if scenario is not None and scenario.exists():
        return scenario
    shipped = shipped_scenarios()
    if (file := shipped.get(str(scenario))) is not None:
        return file
    what = f"{scenario}: neither a scenario file nor a shipped scenario; " if scenario else ""
    raise ConfigError(
        f"{what}give a TOML file or one of {', '.join(shipped)}; samara simulate --list describes "
        "them"
    )


def read_scenario(path: Path) -> dict[str, Any]:
    """Read the settings of a scenario file without validating them.

    A value that begins with ``./`` or ``../`` is a path relative to the file's folder.

    Raises:
        ConfigError: if the file cannot be read or is not a scenario.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{path}: is larger than 1 MiB, so it is not a scenario; {_FORMS}")
        settings = tomllib.loads(content.decode())
    except OSError as error:
        own = path / "scenario.toml"
        if own.is_file():
            raise ConfigError(f"{path}: is a folder; give the scenario in it, {own}") from error
        what = "it is a folder" if path.is_dir() else error.strerror
        raise ConfigError(f"{path}: the scenario cannot be read: {what}; {_FORMS}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8; save the scenario in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        if path.suffix in (".jsonl", ".json", ".csv"):
            raise ConfigError(
                f"{path}: is data, not a scenario; give it as --data {path} after a scenario"
            ) from error
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    if {"text", "question", "words", "candidates"} & settings.keys():
        raise ConfigError(
            f"{path}: is a task file, not a scenario; give it as --set task={path} with a "
            "scenario, such as samara simulate sst2"
        )
    return {key: _from_folder(value, path.absolute().parent) for key, value in settings.items()}


def _from_folder(value: Any, folder: Path) -> Any:
    """Make a relative path in a scenario absolute; other values are returned unchanged."""
    if isinstance(value, dict):
        return {key: _from_folder(part, folder) for key, part in value.items()}
    if isinstance(value, str) and value.startswith(_FROM_FOLDER):
        return os.path.normpath(folder / value)
    return value
