"""The settings of a live run, as the commands of a server read them."""

from pathlib import Path

import tomli_w

from samara.shared.blob_store import BlobStore
from samara.shared.blobs import publish_blobs
from samara.shared.config import RunConfig, load_scenario
from samara.shared.errors import ConfigError
from samara.shared.features import check_features
from samara.shared.files import write_durably
from samara.shared.settings import nest, parse_assignment
from samara.shared.tasks.kinds import AUTO_FORM

SCENARIO_FILE = "scenario.toml"
"""Name of the file in a run's folder with the settings that it is served under."""


def read_live_config(scenario: Path | None, assignments: list[str], command: str) -> RunConfig:
    """Return the settings of a run in which every client has its own data, and store its files.

    Args:
        scenario: scenario file; None for the defaults.
        assignments: ``key=value`` as given to ``--set``.
        command: command that reads them, for messages.

    Raises:
        SamaraError: if a setting is wrong, or is not for a live run.
    """
    if scenario is not None:
        config = load_scenario(scenario, assignments)
    else:
        config = RunConfig.given(dict(map(parse_assignment, assignments)), "--set")
    if config.evaluate.limit:
        raise ConfigError("evaluate.limit is for simulated clients; leave it out of a live run")
    if config.form != AUTO_FORM:
        raise ConfigError(
            "form is for simulated clients; write it into the file of the task, which every client "
            "of a live run has"
        )
    cohort = config.cohort
    config = config.among(max(config.data.clients, cohort.available, cohort.minimum))
    config = publish_blobs(config, BlobStore())
    check_features({"engine": "flower", "clients": "board"} | config.features, command)
    return config


def describe_early_start(config: RunConfig) -> str:
    """Return a warning if a run begins with fewer clients than a round needs; empty otherwise."""
    cohort = config.cohort
    if cohort.minimum <= cohort.available:
        return ""
    return (
        f"the run begins with {cohort.available} clients (cohort.available), and a round changes "
        f"nothing with fewer than {cohort.minimum} reports (cohort.minimum); set cohort.available "
        f"to {cohort.minimum}"
    )


def write_scenario(run: Path, config: RunConfig) -> None:
    """Write the settings of a run to its folder, so that it is served there without another file.

    Raises:
        OSError: if it cannot be written.
    """
    settings = {key: value for key, value in config.flat().items() if key != "out"}
    write_durably(run / SCENARIO_FILE, tomli_w.dumps(nest(settings)).encode())
