"""The model in use: which run's personal model serves the owner when there are several.

A new base model, or new settings, make another run, whose private rounds begin anew. The personal
model of the run before stays in use until the new one is better: until its mean loss is lower on
the owner's validation examples that both have been evaluated on. Losses are kept by example, so
that a model whose base is no longer loaded can be compared, also after examples were added.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from client.personal.methods import composition
from client.protocol.client_model import ClientModel
from client.protocol.joined_runs import JoinedRuns, find_run_folder, run_folders
from client.protocol.resident_trainer import ResidentTrainer
from shared.config import RunConfig
from shared.errors import TrainerError
from shared.files import write_durably
from shared.frames.instructions import Split
from shared.replay import digest
from shared.tasks.rows import hash_examples

log = logging.getLogger("samara.client")

VALIDATION_FILE = "validation.json"
"""Name of the file in a run's folder."""


@dataclass(frozen=True)
class ValidationLosses:
    """The losses of a personal model on its owner's validation examples.

    Attributes:
        digest: digest of the model's state, in hex.
        losses: cross-entropy by hash of the example, in hex; equal examples are one.
        model_path: folder or name of its base model on this device.
    """

    digest: str
    losses: Mapping[str, float]
    model_path: str = ""

    def is_better_than(self, other: "ValidationLosses") -> bool:
        """Return whether the mean loss on common examples is lower; without any, it is taken so."""
        common = self.losses.keys() & other.losses.keys()
        ours, theirs = (sum(one.losses[key] for key in common) for one in (self, other))
        return not common or ours < theirs

    @property
    def mean(self) -> float:
        """The mean loss; NaN without examples."""
        return float(np.mean(list(self.losses.values()))) if self.losses else float("nan")


def read_validation(run_folder: Path) -> ValidationLosses | None:
    """Return the losses of a run's personal model; None if there are none, or they are damaged."""
    file = run_folder / VALIDATION_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        losses = {str(key): float(loss) for key, loss in content["losses"].items()}
        return ValidationLosses(str(content["digest"]), losses, str(content["model_path"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: %r; it is written anew", file, error)
        return None


def note_validation(resident: ResidentTrainer, run_id: bytes) -> None:
    """Evaluate a run's personal model on the validation examples, and keep the losses.

    Without a private part, and for a model and examples that were evaluated before, it does
    nothing. The thread that trains calls it.

    Args:
        resident: the resident trainer, with the run's base model loaded.
        run_id: run id, 8 bytes.

    Raises:
        SamaraError: if the files of the run cannot be used or written.
    """
    model = ClientModel.read(resident.folder, resident.config, resident.client, run_id.hex())
    if model.private is None:
        return
    runtime, data = resident.runtime_of(model.run), resident.data
    parts = composition(model.config.terms, runtime.layout)
    state = parts.model(model.session.state, model.private)
    examples, prompts = data.in_split(Split.VALIDATION), data.tokenized(Split.VALIDATION)
    keys = [hash_examples([example]) for example in examples]
    name, known = digest(runtime.layout.hash, state).hex(), read_validation(model.run.folder)
    if known is not None and known.digest == name and known.losses.keys() == set(keys):
        return
    losses = {}
    if keys:
        scores = log_softmax(runtime.scores(state, prompts.prompts).astype(np.float64), axis=1)
        chosen = scores[np.arange(len(keys)), prompts.labels]
        losses = {key: -float(score) for key, score in zip(keys, chosen, strict=True)}
    noted = ValidationLosses(name, losses, resident.config.model.path)
    try:
        content = json.dumps(asdict(noted), indent=1).encode()
        write_durably(model.run.folder / VALIDATION_FILE, content)
    except OSError as error:
        raise TrainerError(f"{model.run.folder}: cannot be written: {error.strerror}") from error


def read_model_in_use(
    client_folder: Path, device_config: RunConfig, client: int, run: str = ""
) -> ClientModel:
    """Read the states of the run whose model is in use, with the base model that it had here.

    Args:
        client_folder: folder of the client.
        device_config: the device's settings, which may name another base model by now.
        client: client index.
        run: beginning of the id of another run, in hex.

    Raises:
        SamaraError: if there is no such run, or its files are damaged.
    """
    folder = find_run_folder(client_folder, run) if run else find_run_in_use(client_folder)
    noted = read_validation(folder)
    if noted is not None and Path(noted.model_path).is_dir():
        device_config = device_config.with_values({"model.path": noted.model_path})
    return ClientModel.read(client_folder, device_config, client, folder.name)


def find_run_in_use(client_folder: Path, model_id: bytes | None = None) -> Path:
    """Return the folder of the run whose model is in use; the latest run if none has private parts.

    Args:
        client_folder: folder of the client.
        model_id: model id of the base model that the run must have; None for any.

    Raises:
        TrainerError: if there is no run.
    """
    in_use: Path | None = None
    best: ValidationLosses | None = None
    runs = JoinedRuns(client_folder)
    for folder in reversed(run_folders(client_folder)):
        losses = read_validation(folder)
        if losses is None or not (folder / "session").exists():
            continue
        try:
            run = runs.read(bytes.fromhex(folder.name))
        except TrainerError as error:
            log.warning("%s", error)
            continue
        if model_id not in (None, run.model_id):
            continue
        if best is None or losses.is_better_than(best):
            in_use, best = folder, losses
    return in_use or find_run_folder(client_folder)


def describe_model_in_use(client_folder: Path) -> str:
    """Return a sentence on the model in use; empty if there is no personal model."""
    if not run_folders(client_folder):
        return ""
    in_use = find_run_in_use(client_folder)
    losses = read_validation(in_use)
    if losses is None:
        return ""
    text = f"model in use: that of run {in_use.name}"
    if losses.losses:
        text += f", loss {losses.mean:.3f} on {len(losses.losses)} different validation examples"
    latest = run_folders(client_folder)[0]
    if latest != in_use:
        newer = read_validation(latest)
        how = f"has loss {newer.mean:.3f}" if newer else "has no personal model yet"
        text += f"; the latest run, {latest.name}, {how}"
    return text
