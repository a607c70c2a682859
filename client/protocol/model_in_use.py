"""The model in use: which run's personal model serves the owner when there are several.

A new base model, or new settings, make another run, whose private rounds begin anew. The personal
model of the run before stays in use until the new one is better: until its mean loss is lower on
the owner's validation examples that both have been evaluated on. Losses are kept by example, so
that a model whose base is no longer loaded can be compared, also after examples were added.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from samara.client.personal.personalizations import PERSONALIZATIONS_FILE
from samara.client.protocol.joined_runs import JoinedRuns, find_run_folder, run_folders
from samara.client.protocol.session_store import SESSION_FILE, VALIDATION_FILE
from samara.shared.errors import TrainerError
from samara.shared.kept_file import KeptFile

log = logging.getLogger("samara.client")


@dataclass(frozen=True)
class ValidationLosses:
    """The losses of a personal model on its owner's validation examples.

    Attributes:
        digest: hash of the state and of all else that the losses are a function of, in hex.
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


class ValidationFile(KeptFile[ValidationLosses | None]):
    """The losses of a run's personal model, in the run's folder; None if there are none."""

    name = VALIDATION_FILE
    damaged = "{file}: {problem}; it is written anew"
    is_needed = False
    style: ClassVar = {"indent": 1}

    def _parse(self, value: Any) -> ValidationLosses:
        losses = {str(key): float(loss) for key, loss in value["losses"].items()}
        return ValidationLosses(str(value["digest"]), losses, str(value["model_path"]))


def find_unevaluated_runs(client_folder: Path) -> list[bytes]:
    """Return the ids of the runs whose private rounds are newer than their losses, in their order.

    A trainer that is killed between private rounds and the evaluation of their model leaves one.

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
    """Return a sentence on the model in use; empty if there is no personal model."""
    if not run_folders(client_folder):
        return ""
    in_use = find_run_in_use(client_folder)
    losses = ValidationFile(in_use).read()
    if losses is None:
        return ""
    text = f"model in use: that of run {in_use.name}"
    if losses.losses:
        text += f", loss {losses.mean:.3f} on {len(losses.losses)} different validation examples"
    latest = run_folders(client_folder)[0]
    if latest != in_use:
        newer = ValidationFile(latest).read()
        how = f"has loss {newer.mean:.3f}" if newer else "has no personal model yet"
        text += f"; the latest run, {latest.name}, {how}"
    return text


def _latest_change(files: Iterable[Path]) -> int:
    """Return when one of some files was changed last, ns since 1970; 0 if there is none."""
    return max((file.stat().st_mtime_ns for file in files if file.exists()), default=0)
