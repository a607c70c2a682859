"""Conversion of settings in Python to settings by dotted key.

Python callers give a scenario, a mapping, or keyword arguments.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samara.shared.errors import ConfigError
from samara.shared.settings.choices import with_overrides
from samara.shared.settings.config import RunConfig
from samara.shared.settings.scenarios import read_scenario, scenario_file
from samara.shared.settings.setting import flattened, refuse_retired

Scenario = RunConfig | Mapping[str, Any] | str | os.PathLike[str]
"""Settings of a run: name of a shipped scenario, scenario file, mapping, or `RunConfig`."""


def config_of(scenario: Scenario, overrides: Mapping[str, Any]) -> RunConfig:
    """Return a run's settings as a `RunConfig`.

    Args:
        scenario: initial settings; a mapping may have nested or dotted keys.
        overrides: settings that replace initial settings, in a form that `settings_of` accepts.

    Raises:
        ConfigError: if the scenario cannot be read or is invalid; the message lists every mistake.
    """
    if isinstance(scenario, RunConfig):
        others = settings_of(overrides)
        refuse_retired(RunConfig, others, scenario.flat(), "settings")
        return RunConfig.of(with_overrides(scenario.flat(), others), "settings")
    if isinstance(scenario, Mapping):
        settings = settings_of(scenario)
        source = "settings"
    else:
        file = scenario_file(Path(scenario))
        settings = flattened(read_scenario(file))
        source = str(file)
    return RunConfig.given(settings | settings_of(overrides), source)


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a mapping from dotted keys to values.

    Python's keyword arguments have neither hyphens nor dots in their names. Underscores therefore
    replace hyphens, and nested mappings replace sections. Dotted keys are also accepted. Paths
    become strings.

    >>> settings_of({"learning_rate": 0.1, "data": {"clients": 4}, "adapter.rank": 2})
    {'learning-rate': 0.1, 'data.clients': 4, 'adapter.rank': 2}

    Raises:
        ConfigError: if a setting is given twice.
    """
    settings: dict[str, Any] = {}
    for key, value in flattened(given).items():
        name = key.replace("_", "-")
        if name in settings:
            raise ConfigError(f"{name} is given twice; give it once")
        settings[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    if out := settings.get("out"):
        settings["out"] = str(Path(out).resolve())
    return settings
