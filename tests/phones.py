"""A small exported program and a phone's rows for tests."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from client.trainer import Trainer
from devices.phone.export import Shapes, export, prepared
from devices.phone.manifest import Delegate, PhoneQuantization
from shared.config import RunConfig
from shared.frames import Split

SHAPES = Shapes(queries=2, batch=2, sequence=16)


def exported(
    settings: dict[str, Any],
    out: Path,
    delegate: Delegate = "portable",
    quantization: PhoneQuantization = "none",
) -> Path:
    config = RunConfig.of(settings, "test")
    ready = prepared(config.model.path, config.task, config.adapter, quantization)
    export(ready, SHAPES, quantization, delegate, out)
    return out


def rows_of(trainer: Trainer, device: int, clients: int, splits: Iterable[Split]) -> str:
    """What a client of the eager trainer holds, as a phone's file."""
    lines = []
    for split in splits:
        share = trainer.share(device, clients, split)
        for prompt, label in zip(share.prompts, share.labels.tolist(), strict=True):
            row = {"ids": list(prompt.sequences[0]), "label": label, "split": split.name.lower()}
            lines.append(json.dumps(row) + "\n")
    return "".join(lines)
