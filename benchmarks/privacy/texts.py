"""The texts of clients as a model that is linear in the trained numbers sees them, computed once.

For a readout that is exact: its scores are those of the base model plus a product with features.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.privacy.frozen_model import Frozen
from benchmarks.privacy.linear_texts import Texts
from samara.client.training.model_runtime import load_run
from samara.shared.config import RunConfig
from samara.shared.contrasts import contrasts
from samara.shared.frames.instructions import Split
from samara.shared.sections import AdapterSettings, ModelSettings

SplitTexts = dict[Split, list[Texts]]
"""The texts of every client, by split."""


def read_texts(settings: Mapping[str, Any], clients: int, file: Path) -> SplitTexts:
    """Return the texts of clients with the features of a readout; of a task with two labels.

    Args:
        settings: task, data and model of a run.
        clients: number of clients among whom the data are divided as in a run.
        file: file that keeps the features; another task, model or division needs another.
    """
    if not file.exists():
        own = {"adapter.layers": "readout", "threads": 1, "data.clients": clients}
        runtime, source = load_run(RunConfig.of({**settings, **own}, "benchmark"))
        ((one, other),) = contrasts(2).astype(np.float64)
        kept: dict[str, NDArray[Any]] = {}
        for split in Split:
            parts = [source.share_of(client, clients).tokenized(split) for client in range(clients)]
            for part in parts:
                runtime.prepare(part.prompts)
            features = np.concatenate([runtime.features(part.prompts) for part in parts])
            base = np.concatenate([runtime.base_scores(part.prompts) for part in parts])
            kept |= {
                f"gradients {split}": (other - one) * features.astype(np.float64),
                f"margins {split}": (base[:, 1] - base[:, 0]).astype(np.float64),
                f"labels {split}": np.concatenate([part.labels for part in parts]),
                f"counts {split}": np.array([len(part.labels) for part in parts]),
            }
        np.savez(file, **kept)  # type: ignore[arg-type]
    with np.load(file) as read:
        return {
            split: divided(
                Texts(*(read[f"{name} {split}"] for name in ("gradients", "margins", "labels"))),
                read[f"counts {split}"],
            )
            for split in Split
        }


def read_inner_texts(settings: Mapping[str, Any], limit: int, file: Path) -> SplitTexts:
    """Return the texts of one client with the gradients of adapters inside the model at its base.

    The adapters are rank 2 of the top layer's q and v projections.

    Args:
        settings: task, data and model of a run, whose encoder it is.
        limit: most texts of a split.
        file: file that keeps the gradients.
    """
    if not file.exists():
        config = RunConfig.of({**settings, "data.limit": limit, "threads": 1}, "benchmark")
        examples = load_run(config).data.undivided(0)
        model = ModelSettings.model_validate({"path": config.model.path})
        frozen = Frozen(config.task, model, AdapterSettings(layers="top:1", rank=2, alpha=4.0))
        kept: dict[str, NDArray[Any]] = {}
        for split in (Split.TRAIN, Split.TEST):
            own = examples.in_split(split)[:limit]
            found = np.stack([frozen.gradient(example.text) for example in own])
            kept[f"gradients {split}"], kept[f"margins {split}"] = found[:, :-1], found[:, -1]
            kept[f"labels {split}"] = examples.tokenized(split).labels[:limit]
        np.savez(file, **kept)  # type: ignore[arg-type]
    with np.load(file) as read:
        names = ("gradients", "margins", "labels")
        return {
            split: [Texts(*(read[f"{name} {split}"] for name in names))]
            for split in (Split.TRAIN, Split.TEST)
        }


def divided(texts: Texts, counts: NDArray[np.int64]) -> list[Texts]:
    """Return consecutive parts of texts, of these sizes."""
    ends = np.cumsum(counts)
    return [
        texts.some(np.arange(end - count, end)) for end, count in zip(ends, counts, strict=True)
    ]


def groups_of(texts: Texts, size: int) -> list[Texts]:
    """Return texts in groups of a size, but at most all of them, without the rest."""
    size = min(size, len(texts.labels))
    count = len(texts.labels) // size
    return divided(texts, np.full(count, size))


def joined(parts: Iterable[Texts]) -> Texts:
    """Return the texts of several clients as those of one."""
    found = list(parts)
    return replace(
        found[0],
        gradients=np.concatenate([part.gradients for part in found]),
        margins=np.concatenate([part.margins for part in found]),
        labels=np.concatenate([part.labels for part in found]),
    )
