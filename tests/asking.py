"""Tasks of a server, as clients receive them."""

import json
from typing import Any

from samara.shared.proto.trainer_pb2 import Task, TaskKind
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.settings.config import RunConfig

NOTHING = CatchUp()


def sent(config: RunConfig) -> bytes:
    """The settings of a run in the form that a ClientApp passes on."""
    return json.dumps(config.flat(), sort_keys=True).encode()


def hello_task(settings: bytes = b"") -> Task:
    return Task(kind=TaskKind.HELLO, settings=settings)


def mask_task(frame: bytes, settings: bytes = b"") -> Task:
    return Task(kind=TaskKind.MASK, instruction=frame, settings=settings)


def train_task(
    frame: bytes, missed: CatchUp = NOTHING, settings: bytes = b"", shares: bytes = b""
) -> Task:
    return _instruction(TaskKind.TRAIN, frame, missed, settings, shares=shares)


def evaluate_task(
    frame: bytes, missed: CatchUp = NOTHING, settings: bytes = b"", personal: bool = False
) -> Task:
    return _instruction(TaskKind.EVALUATE, frame, missed, settings, personal=personal)


def _instruction(
    kind: TaskKind, frame: bytes, missed: CatchUp, settings: bytes, **more: Any
) -> Task:
    given = {"snapshot": missed.snapshot, "tail": missed.tail, "settings": settings}
    return Task(kind=kind, instruction=frame, **given, **more)
