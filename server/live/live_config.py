"""Functions that read, store and check the settings of a live run."""

from pathlib import Path

import tomli_w

from samara.shared.errors import ConfigError
from samara.shared.settings.blobs import publish_blobs
from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.settings.features import check_features
from samara.shared.settings.setting import nest, parse_assignment
from samara.shared.storage.blob_store import BlobStore
from samara.shared.storage.files import write_durably
from samara.shared.tasks.kinds import AUTO_FORM

SCENARIO_FILE = "scenario.toml"
"""File in a run's folder with the settings of the run's latest server."""


def read_live_config(scenario: Path | None, assignments: list[str], command: str) -> RunConfig:
    """Read the settings of a live run, and put the files that they name into the blob store.

    Args:
        scenario: scenario file; None for the defaults.
        assignments: ``key=value`` arguments of ``--set``.
        command: name of the calling command, for messages.

    Raises:
        SamaraError: if a setting is wrong or does not apply to a live run.
    """
    if scenario is not None:
        config = load_scenario(scenario, assignments)
    else:
        config = RunConfig.given(dict(map(parse_assignment, assignments)), "--set")
    if config.evaluate.limit:
        raise ConfigError(
            "evaluate.limit: is only for simulated clients; remove it from the settings"
        )
    if config.form != AUTO_FORM:
        raise ConfigError(
            "form: is only for simulated clients; write the form into the task file that every "
            "client of the live run has"
        )
    cohort = config.cohort
    config = config.among(max(config.data.clients, cohort.available, cohort.minimum))
    config = publish_blobs(config, BlobStore())
    check_features({"engine": "flower", "clients": "board"} | config.features, command)
    return config


def describe_early_start(config: RunConfig) -> str:
    """Return a warning if a run begins with fewer clients than a round needs; otherwise empty."""
    cohort = config.cohort
    if cohort.minimum <= cohort.available:
        return ""
    return (
        f"the run begins with {cohort.available} clients (cohort.available), but a round with "
        f"fewer than {cohort.minimum} reports (cohort.minimum) does not change the model; set "
        f"cohort.available to {cohort.minimum}"
    )


def write_scenario(run: Path, config: RunConfig) -> None:
    """Write the settings of a run to its folder, so that the run can resume from this file alone.

    Raises:
        OSError: if the file cannot be written.
    """
    settings = {key: value for key, value in config.flat().items() if key != "out"}
    write_durably(run / SCENARIO_FILE, tomli_w.dumps(nest(settings)).encode())
