"""Learners without a model."""

from types import SimpleNamespace
from typing import Any

from samara.shared.frames.instructions import Split


class ExamplesOnly(SimpleNamespace):
    """The examples of a client, which all came together, under a layout of some numbers."""

    def __init__(self, size: int = 1, examples: int = 8) -> None:
        super().__init__(layout=SimpleNamespace(size=size), examples=examples)

    def generations_of(self, split: Split) -> tuple[str, ...]:
        return (split.name,)

    def smallest_batch(self, instruction: Any) -> int:
        return int(self.examples)
