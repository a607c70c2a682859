"""A picture of who is busy when in a MeZO step on streamed parameters (ZO2, figure 4).

    OMP_NUM_THREADS=1 python -m benchmarks.speed.streamed_timeline FILE.png [--shape llama-34m]

Two runs, one below the other on one time axis: as it is, and without overlap. In each there is the
thread that reads blocks, the one that computes, and the one that writes blocks back. The marks are
taken at the calls themselves, of the third step.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.speed.lanes_plot import Bar, draw_lanes
from benchmarks.speed.shapes import SHAPES, write_checkpoint
from benchmarks.speed.streamed_ablations import ZO2, make_step
from samara.client.spaces import streamed
from samara.client.streaming.block_store import FileStore
from samara.client.streaming.stream import BlockStream
from samara.shared.model.loading import BaseModel

LANES = ("read", "compute", "write back")
COLOURS = {
    "read": "#4c72b0",
    "wait for a block": "#dddddd",
    "update": "#c44e52",
    "perturb": "#dd8452",
    "forward": "#55a868",
    "write back": "#937860",
}
MARKED: dict[str, tuple[str, type[Any], str]] = {
    "read": ("read", FileStore, "fetch"),
    "write back": ("write back", FileStore, "write_back"),
    "wait for a block": ("compute", BlockStream, "load_block"),
    "update": ("compute", streamed.StreamedFullSpace, "_apply_deferred"),
    "perturb": ("compute", streamed._PerturbedPart, "_move"),
}
"""Lane, class and method of each kind of work; later ones are drawn over earlier ones."""


@dataclass(frozen=True)
class Mark:
    """A time in which a lane was busy, in seconds of one clock."""

    lane: str
    work: str
    start: float
    end: float


@contextmanager
def marking(marks: list[Mark]) -> Iterator[None]:
    """Record every call of the methods in `MARKED`, also from other threads."""
    with ExitStack() as patches:
        for work, (lane, owner, name) in MARKED.items():
            wrapped = _marked(getattr(owner, name), lane, work, marks)
            patches.enter_context(mock.patch.object(owner, name, wrapped))
        yield


def _marked(
    call: Callable[..., Any], lane: str, work: str, marks: list[Mark]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            marks.append(Mark(lane, work, begun, time.perf_counter()))

    return run


def step_marks(folder: Path, blocks: Path, variant: str, tokens: int) -> list[Mark]:
    """Return the marks of a variant's third step, from its begin on, in the order of drawing."""
    marks: list[Mark] = []

    def hook(base: BaseModel) -> None:
        for block in base.blocks:
            block.forward = _marked(block.forward, "compute", "forward", marks)

    with marking(marks):
        step = make_step(folder, blocks, variant, tokens, hook)
        for _ in range(2):
            step()
        marks.clear()
        begun = time.perf_counter()
        step()
        own = [Mark(m.lane, m.work, m.start - begun, m.end - begun) for m in marks]
    order = ["forward", *MARKED]
    return sorted(own, key=lambda mark: order.index(mark.work))


def draw(runs: dict[str, list[Mark]], file: Path) -> None:
    """Draw the marks of several runs, one below the other."""
    bars = {
        name: [Bar(m.lane, m.work, 1000 * m.start, 1000 * m.end) for m in marks]
        for name, marks in runs.items()
    }
    draw_lanes(bars, LANES, COLOURS, "milliseconds", file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", default="llama-34m", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=256)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        write_checkpoint(given.shape, model, 2**30, torch.float32)
        runs = {
            name: step_marks(model, Path(folder) / variant.replace(" ", "-"), variant, given.tokens)
            for name, variant in {"ZO2": ZO2, "no overlap": "no scheduler overlap"}.items()
        }
    draw(runs, given.file)
    for name, marks in runs.items():
        print(f"{name}: {1000 * max(mark.end for mark in marks):.0f} ms")
    print(f"written: {given.file}")


if __name__ == "__main__":
    main()
