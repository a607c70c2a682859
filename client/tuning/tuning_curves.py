"""Curves for TensorBoard, where it is installed."""

import logging
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger("samara.tune")

CURVES_FOLDER = "tensorboard"


class Curves(Protocol):
    """Takes numbers by step."""

    def add(self, name: str, value: float, step: int) -> None:
        """One point of a curve."""

    def close(self) -> None:
        """Nothing follows."""


class _NoCurves:
    def add(self, name: str, value: float, step: int) -> None:
        """Not kept."""

    def close(self) -> None:
        """Nothing is open."""


class _TensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def curves_in(folder: Path, steps: int) -> Curves:
    """Curves of a run that go on after some steps; none without TensorBoard, which is said.

    Args:
        folder: of the run.
        steps: taken before; what was written for later ones is hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("no curves for TensorBoard: pip install 'samara-fl[tensorboard]' to get them")
        return _NoCurves()
    writer = SummaryWriter(folder / CURVES_FOLDER, purge_step=steps + 1)
    return _TensorBoard(writer)
