"""Search for the finished run of a command, without loading a model.

A run's id identifies task and data only by their paths. A simulation's folder therefore also
contains hashes of their content. If the content has changed, the run is neither continued nor
reused.
"""

import json
from pathlib import Path

from samara.client.training.client_data import ClientDataSource, example_reader
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.model.model_folder import model_id_of
from samara.shared.protocol.run_id import hash_identity
from samara.shared.results.result import RESULT_FILE, RunResult
from samara.shared.settings.blobs import file_settings
from samara.shared.settings.config import RunConfig
from samara.shared.settings.run_settings import describe_differences, settings_of_run
from samara.shared.settings.runs import RUNS_FOLDER, identity_bytes, settings_here
from samara.shared.storage.files import make_folder, write_durably
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.rows import hash_whole_examples

INPUTS_FILE = "inputs.json"
"""Name of the file in a run's folder with the hashes of its task and its data."""

_MOVED_TOO = "task", "data.path"
"""Settings that are paths and part of a run's identity, and may move with the run's folder."""


def find_finished(config: RunConfig) -> Path | None:
    """Return the folder of the finished run with these settings; None if there is no such run.

    The model's weights are read only to compute their hash for the run's id.

    Args:
        config: settings of the run, with hashes in place of blobs.

    Raises:
        ModelError: if the folder of the model is missing or incomplete.
        ConfigError: if `out` holds a finished run with other settings, which the message names, or
            if the content of task or data has changed since the run.
    """
    folders = [Path(config.out)] if config.out else sorted(RUNS_FOLDER.glob("*"))
    ended = [folder for folder in folders if (folder / RESULT_FILE).exists()]
    if not ended:
        return None
    model_id = model_id_of(config.model.path, config.adapter.depth)
    flat = config.flat()
    for folder in ended:
        try:
            result = RunResult.read(folder)
            here = settings_here(result.config, folder)
            stored = RunConfig.of(here, str(folder))
        except SamaraError:
            continue  # a run of `samara tune`, or of an earlier version
        files = file_settings(config)
        layout_hash = bytes.fromhex(result.layout_hash)
        before = {key: result.config[key] for key in _MOVED_TOO if here.get(key) == flat[key]}
        run_id = hash_identity(identity_bytes(config, before), layout_hash, model_id).hex()
        if (run_id, files) == (result.run_id, file_settings(stored)):
            _check_inputs(folder, config)
            return folder
        other = describe_differences(settings_of_run(stored), config)
        if model_id.hex() != result.model_id:
            other.append("the base model")
        if config.out and other:
            raise ConfigError(
                f"{folder}: holds another run, which is finished and differs in "
                f"{', '.join(other)}. A finished run cannot be extended: use the settings of that "
                "run, or choose another --out. With adapter.start = this folder, a new run "
                "begins with the model of that run"
            )
    return None


def hold_inputs(folder: Path, config: RunConfig, data: ClientDataSource | None = None) -> None:
    """Record hashes of the task and the data of a run; if there is a record, check that it matches.

    Args:
        folder: folder of the run.
        config: settings of the run.
        data: data of the run; by default read from the source in the settings.

    Raises:
        ConfigError: if the run began with other content, or the record cannot be written.
    """
    file = folder / INPUTS_FILE
    if file.exists():
        _check_inputs(folder, config, data)
        return
    try:
        make_folder(folder)
        write_durably(file, (json.dumps(inputs_of(config, data), indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; set --out") from error


def _check_inputs(folder: Path, config: RunConfig, data: ClientDataSource | None = None) -> None:
    """Check that a run's task and data have not changed; a run without a record passes.

    Raises:
        ConfigError: if they have changed; the message names the changed input.
    """
    try:
        noted = json.loads((folder / INPUTS_FILE).read_text())
        here = inputs_of(config, data)
    except (OSError, ValueError, SamaraError):
        return  # a result remains valid if its data no longer exist
    if changed := [name for name in here if noted.get(name) != here[name]]:
        raise ConfigError(
            f"{folder}: the content of {' and '.join(changed)} has changed since this run began; "
            "restore the old content, or choose another --out"
        )


def inputs_of(config: RunConfig, data: ClientDataSource | None = None) -> dict[str, str]:
    """Return the hashes of a run's task and of its examples.

    Args:
        config: settings of the run.
        data: data of the run; by default read from the source in the settings.

    Raises:
        SamaraError: if task or data cannot be read.
    """
    task = load_task(config.task)
    clients = config.data.clients
    examples = data.examples_for(clients) if data else example_reader(task, config.data)(clients)
    return {"task": task.digest, "data": hash_whole_examples(examples)}
