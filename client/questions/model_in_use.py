"""The model in use: the run whose personal model currently serves the owner.

A new base model or new settings make another run, whose private rounds start over. The previous
run's personal model stays in use until the new model has a lower mean loss. The mean is over the
owner's validation examples on which both models were evaluated. Losses are stored by example, so a
model can still be compared if its base model is no longer loaded, and after examples were added.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from samara.client.personal.few_examples import QualityByExamples
from samara.client.personal.personalizations import PERSONALIZATIONS_FILE
from samara.client.protocol.joined_runs import JoinedRuns, find_run_folder, run_folders
from samara.client.protocol.session_store import SESSION_FILE, VALIDATION_FILE
from samara.shared.errors import TrainerError
from samara.shared.storage.kept_file import KeptFile

log = logging.getLogger("samara.client")


@dataclass(frozen=True)
class ValidationLosses:
    """The losses of a personal model on its owner's validation examples.

    Attributes:
        digest: hash of the state and of everything else that the losses depend on, in hex.
        losses: cross-entropy by hash of the example, in hex; equal examples count once.
        model_path: folder or name of the personal model's base model on this device.
        by_examples: quality of private parts fitted to fewer training examples; empty unless a
            solver fits the private part.
    """

    digest: str
    losses: Mapping[str, float]
    model_path: str = ""
    by_examples: tuple[QualityByExamples, ...] = ()

    def is_better_than(self, other: "ValidationLosses") -> bool:
        """Return whether the mean loss on the examples that both have is lower than the other's.

        Without common examples, the result is True.
        """
        common = self.losses.keys() & other.losses.keys()
        ours, theirs = (sum(one.losses[key] for key in common) for one in (self, other))
        return not common or ours < theirs

    @property
    def mean(self) -> float:
        """Mean of the losses; NaN without examples."""
        return float(np.mean(list(self.losses.values()))) if self.losses else float("nan")


class ValidationFile(KeptFile[ValidationLosses | None]):
    """The file in a run's folder with the losses of its personal model; its value may be None."""

    name = VALIDATION_FILE
    damaged = "{file}: {problem}; the file is written again"
    is_needed = False
    style: ClassVar = {"indent": 1}

    def _to_json(self, content: ValidationLosses | None) -> Any:
        if content is None:
            return None
        return {key: value for key, value in vars(content).items() if value != ()}

    def _parse(self, value: Any) -> ValidationLosses:
        losses = {str(key): float(loss) for key, loss in value["losses"].items()}
        by_examples = tuple(
            QualityByExamples(int(count), float(accuracy), float(loss))
            for count, accuracy, loss in value.get("by_examples", ())
        )
        return ValidationLosses(str(value["digest"]), losses, str(value["model_path"]), by_examples)


def find_unevaluated_runs(client_folder: Path) -> list[bytes]:
    """Return, in order, the ids of the runs whose private rounds are newer than the stored losses.

    A run stays in this state if its trainer is killed after private rounds, before their model is
    evaluated.

    Args:
        client_folder: folder of the client.
    """
    return [
        bytes.fromhex(folder.name)
        for folder in reversed(run_folders(client_folder))
        if _latest_change(folder.glob(f"clients/*/{PERSONALIZATIONS_FILE}"))
        > _latest_change([folder / VALIDATION_FILE])
    ]


def find_run_in_use(client_folder: Path, model_id: bytes | None = None) -> Path:
    """Return the folder of the run whose model is in use.

    If no run has a private part, the latest run is in use.

    Args:
        client_folder: folder of the client.
        model_id: id of the base model that the run must have; None for any base model.

    Raises:
        TrainerError: if there is no run.
    """
    in_use: Path | None = None
    best: ValidationLosses | None = None
    runs = JoinedRuns(client_folder)
    for folder in reversed(run_folders(client_folder)):
        losses = ValidationFile(folder).read()
        if losses is None or not (folder / SESSION_FILE).exists():
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
    """Return a sentence about the model in use, or an empty text if there is no personal model."""
    if not run_folders(client_folder):
        return ""
    in_use = find_run_in_use(client_folder)
    losses = ValidationFile(in_use).read()
    if losses is None:
        return ""
    text = f"model in use: the model of run {in_use.name}"
    if losses.losses:
        text += f", loss {losses.mean:.3f} on {len(losses.losses)} different validation examples"
    latest = run_folders(client_folder)[0]
    if latest != in_use:
        newer = ValidationFile(latest).read()
        how = f"has loss {newer.mean:.3f}" if newer else "has no personal model yet"
        text += f"; the latest run, {latest.name}, {how}"
    return text


def quality_of_model_in_use(client_folder: Path) -> tuple[QualityByExamples, ...]:
    """Return the model in use's quality by number of training examples, or () if it is unknown."""
    if not run_folders(client_folder):
        return ()
    losses = ValidationFile(find_run_in_use(client_folder)).read()
    return losses.by_examples if losses else ()


def _latest_change(files: Iterable[Path]) -> int:
    """Return the latest modification time of some files, ns since 1970; 0 without files."""
    return max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)
