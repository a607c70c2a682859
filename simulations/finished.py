"""Finished runs: the result of a command that has run to its end is found without a model."""

from pathlib import Path

from shared.blobs import file_settings
from shared.config import RunConfig
from shared.errors import ConfigError, SamaraError
from shared.model.model_folder import model_id_of
from shared.result import RESULT_FILE, RunResult
from shared.run_id import hash_identity
from shared.run_settings import describe_differences, settings_of_run
from shared.runs import RUNS_FOLDER, identity_bytes


def find_finished(config: RunConfig) -> Path | None:
    """Return the folder of the run with these settings, if it has ended.

    Neither weights nor data are read but for the hash of the model's files, as a run's id has it.

    Args:
        config: settings of the run, with hashes in place of blobs.

    Raises:
        ModelError: if the folder of the model is missing or incomplete.
        ConfigError: if `out` holds a finished run with other settings, which are named.
    """
    folders = [Path(config.out)] if config.out else sorted(RUNS_FOLDER.glob("*"))
    ended = [folder for folder in folders if (folder / RESULT_FILE).exists()]
    if not ended:
        return None
    model_id, identity = model_id_of(config.model.path), identity_bytes(config)
    for folder in ended:
        try:
            result = RunResult.read(folder)
            stored = RunConfig.of(result.config, str(folder))
        except SamaraError:
            continue  # of `samara tune`, or of an earlier version
        files, layout_hash = file_settings(config), bytes.fromhex(result.layout_hash)
        run_id = hash_identity(identity, layout_hash, model_id).hex()
        if (run_id, files) == (result.run_id, file_settings(stored)):
            return folder
        other = describe_differences(settings_of_run(stored), config)
        if model_id.hex() != result.model_id:
            other.append("the base model")
        if config.out and other:
            raise ConfigError(
                f"{folder}: holds another run, which has ended, and differs in "
                f"{', '.join(other)}; a finished run cannot be extended: repeat it with its own "
                "settings, or choose another --out (with adapter.start = this folder a new run "
                "begins with its model)"
            )
    return None
