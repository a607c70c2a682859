"""Settings as Python users give them: a scenario, a mapping, keywords."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.shared.config import RunConfig
from samara.shared.errors import ConfigError
from samara.shared.scenarios import read_scenario, scenario_file
from samara.shared.settings import flattened, refuse_retired

Scenario = RunConfig | Mapping[str, Any] | str | os.PathLike[str]
"""Settings of a run: a shipped scenario's name, a scenario file, a mapping, or a `RunConfig`."""


def config_of(scenario: Scenario, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a run.

    Args:
        scenario: settings to begin with; a mapping may be nested or dotted.
        overrides: settings that replace them, as `settings_of` reads them.

    Raises:
        ConfigError: if the scenario cannot be read, or listing every mistake.
    """
    if isinstance(scenario, RunConfig):
        others = settings_of(overrides)
        refuse_retired(RunConfig, others, scenario.flat(), "settings")
        return RunConfig.of(scenario.flat() | others, "settings")
    if isinstance(scenario, Mapping):
        settings, source = settings_of(scenario), "settings"
    else:
        file = scenario_file(Path(scenario))
        settings, source = flattened(read_scenario(file)), str(file)
    return RunConfig.given(settings | settings_of(overrides), source)


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted key.

    Keywords of Python have no hyphens and no dots, so that underscores stand for hyphens and nested
    mappings for sections; dotted keys work too. Paths become text.

    >>> settings_of({"learning_rate": 0.1, "data": {"clients": 4}, "adapter.rank": 2})
    {'learning-rate': 0.1, 'data.clients': 4, 'adapter.rank': 2}

    Raises:
        ConfigError: if a setting is given twice.
    """
    settings: dict[str, Any] = {}
    for key, value in flattened(given).items():
        name = key.replace("_", "-")
        if name in settings:
            raise ConfigError(f"{name}: is given twice; give it once")
        settings[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    if out := settings.get("out"):
        settings["out"] = str(Path(out).resolve())
    return settings
