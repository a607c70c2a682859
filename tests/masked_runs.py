"""Runs whose reports have masks."""

from typing import Any

from federations import Settings, config_of

from samara.shared.settings.config import RunConfig

PRIVATE = {
    "privacy__clip": 2.0,
    "privacy__noise_multiplier": 0.5,
    "privacy__honest_share": 0.7,
    "seed_policy": "shared",
    "aggregation__rule": "mean",
    "method": "global",
    "cohort__minimum": 3,
    "data__clients": 4,
    "rounds": 2,
}


def private(settings: Settings, mode: str = "distributed", **changes: Any) -> RunConfig:
    return config_of(settings, **(PRIVATE | {"privacy__mode": mode} | changes))


def masked(settings: Settings, mode: str = "distributed", **changes: Any) -> RunConfig:
    return private(settings, mode, privacy__secure_aggregation=True, **changes)
