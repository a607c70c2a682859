"""Training curves for TensorBoard, if it is installed."""

import logging
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger("samara.tune")

CURVES_FOLDER = "tensorboard"


class Curves(Protocol):
    """Protocol of writers of training curves, which consist of numbers by step."""

    def add(self, name: str, value: float, step: int) -> None:
        """Add a point to a curve."""

    def close(self) -> None:
        """Write all points and close the files."""


class _NoCurves:
    def add(self, name: str, value: float, step: int) -> None:
        """Ignore the point."""

    def close(self) -> None:
        """Do nothing, because no file is open."""


class _TensorBoardCurves:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def open_curves(folder: Path, steps: int) -> Curves:
    """Open the curves of a run; without TensorBoard, log a hint and return curves without effect.

    Args:
        folder: folder of the run.
        steps: number of steps taken before; points already written for later steps are hidden.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("no curves are written; for curves, pip install 'samara-fl[tensorboard]'")
        return _NoCurves()
    writer = SummaryWriter(folder / CURVES_FOLDER, purge_step=steps + 1)
    return _TensorBoardCurves(writer)
