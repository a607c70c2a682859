"""A small exported program and a phone's rows for tests."""

from pathlib import Path
from typing import Any

from devices.phone.export import ProgramShapes, export_program, prepare_model
from devices.phone.manifest import Delegate, Form, PhoneQuantization
from shared.config import RunConfig

SHAPES = ProgramShapes(queries=2, batch=2, sequence=16)


def exported(
    settings: dict[str, Any],
    out: Path,
    delegate: Delegate = "portable",
    quantization: PhoneQuantization = "none",
    form: Form = "functional",
) -> Path:
    config = RunConfig.of(settings, "test")
    ready = prepare_model(config.model.path, config.task, config.adapter, quantization)
    export_program(ready, SHAPES, quantization, delegate, out, form)
    return out
