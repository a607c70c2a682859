"""The folder of a tuning run: its identity, its lock, and whether the run has ended."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from samara.client.tuning.settings import IDENTITY_FILE, TuneSettings
from samara.client.tuning.tuning_setup import draw_examples
from samara.shared.errors import ConfigError
from samara.shared.model.model_folder import model_id_of
from samara.shared.settings.runs import RUNS_FOLDER, folder_name
from samara.shared.storage.files import make_folder, write_durably
from samara.shared.tasks.catalog import task_of
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.rows import Example, hash_whole_examples
from samara.shared.tasks.sources import SPLITS

RESULT_FILE = "result.json"
MODEL_PATH = "model_path"
"""Key of the base model's path in result.json. The identity contains only the model's hash."""


def identity_of(
    settings: TuneSettings, task: Task, model_id: bytes, examples: Sequence[Example]
) -> dict[str, Any]:
    """Return all values that determine a run's results, by key."""
    counts = Counter(example.split for example in examples)
    return {
        "config": settings.identity(),
        "model_id": model_id.hex(),
        "task": task.digest,
        "metric": task.metric,
        "data": hash_whole_examples(examples),
        "examples": {name: counts[name] for name in SPLITS},
    }


def hash_of(identity: dict[str, Any]) -> bytes:
    """Return the hash of a run's identity, 32 bytes; the run's files contain this hash."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).digest()


def find_ended(settings: TuneSettings) -> Path | None:
    """Return the folder of this run if it has ended, else None; the model is not loaded.

    Raises:
        ConfigError: if `out` contains another run; the message names the differences.
    """
    own = RUNS_FOLDER.glob(folder_name(settings.task, "*"))
    folders = [Path(settings.out)] if settings.out else sorted(own)
    files = [f / IDENTITY_FILE for f in folders if (f / IDENTITY_FILE).exists()]
    files = [file for file in files if file.with_name(RESULT_FILE).exists()]
    if not files:
        return None
    task = task_of(settings)
    examples = draw_examples(settings, task)
    identity = identity_of(
        settings, task, model_id_of(settings.model.path, settings.adapter.depth), examples
    )
    for file in files:
        try:
            _check_same(file, identity)
            return file.parent
        except ConfigError:
            if settings.out:
                raise
    return None


@contextmanager
def locked(folder: Path, identity: dict[str, Any]) -> Iterator[None]:
    """Lock a folder for this process inside the context.

    Before, the folder is checked: it must be empty or hold this run.

    Raises:
        ConfigError: if the folder holds another run, is in use by another process, or cannot be
            written.
    """
    try:
        make_folder(folder)
        try:
            lock = FileLock(folder / "lock").acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"{folder}: another process is executing this run; wait for that process, or end it"
            ) from None
        with lock:
            _check_same(folder / IDENTITY_FILE, identity)
            yield
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written: {error.strerror}; make the folder writable"
        ) from error


def _check_same(file: Path, identity: dict[str, Any]) -> None:
    if not file.exists():
        write_durably(file, (json.dumps(identity, indent=2, sort_keys=True) + "\n").encode())
        return
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        stored |= stored.pop("config")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{file}: is damaged: {error!r}; begin the run in another folder"
        ) from error
    expected = identity | identity["config"]
    del expected["config"]
    different = [key for key in expected | stored if stored.get(key) != expected.get(key)]
    if different:
        differences = ", ".join(
            f"{key} ({stored.get(key)} in the file, {expected.get(key)} here)" for key in different
        )
        raise ConfigError(
            f"{file}: another run is in this folder: {differences}; use another folder"
        )
