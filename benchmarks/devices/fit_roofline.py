"""Fit the time model's physical parameters to the steps that P-RGE's authors timed.

    python -m benchmarks.devices.fit_roofline [--write]

The cells are tables 3 and 4 of P-RGE (Gao et al.) at sequence length 64; B = 1, 2, 4, 8 on a Jetson
Orin Nano with NF4 weights, effective batch sizes of 2 to 16 on a OnePlus 12 in fp16. Their code is
taken to compute logits at every position, as MeZO's does, with adapters of rank 16 on all blocks.
Errors are relative; the fit minimises squared logarithms of the ratios. Nothing is fitted to a cell
while it is held out: one cell at a time, or all of a model, of a grouping, or of a batch size.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.arguments import arguments
from samara.devices.hardware.model_shape import ModelShape, model_shape
from samara.devices.hardware.profile import (
    DeviceProfile,
    MeasuredStep,
    TimingFit,
    load_device,
    save_profile,
)
from samara.devices.hardware.roofline import Quantization, Workload, step_time

SEQUENCE = 64
PROFILES = Path(__file__).parents[2] / "devices" / "profiles"


@dataclass(frozen=True)
class Timed:
    """A published step."""

    model: str
    grouping: str
    batch: int
    seconds: float
    quantization: Quantization

    @property
    def work(self) -> Workload:
        """Return the workload for the time model."""
        return Workload(
            sequence=SEQUENCE,
            batch=self.batch,
            grouping=self.grouping,  # type: ignore[arg-type]
            quantization=self.quantization,
            tiled=False,
        )


def _table(
    model: str, grouping: str, quantization: Quantization, batches: Sequence[int], *seconds: float
) -> list[Timed]:
    rows = zip(batches, seconds, strict=True)
    return [Timed(model, grouping, batch, time, quantization) for batch, time in rows]


_B = (1, 2, 4, 8)
ORIN_NANO = [
    *_table("tinyllama-1.1b", "sequential", "nf4", _B, 0.69, 0.71, 0.89, 1.28),
    *_table("tinyllama-1.1b", "inner", "nf4", _B, 0.43, 0.49, 0.69, 1.15),
    *_table("llama2-7b", "sequential", "nf4", _B, 3.10, 3.37, 4.44, 6.46),
    *_table("llama2-7b", "inner", "nf4", _B, 1.69, 2.22, 3.22, 5.38),
]
ONEPLUS_12 = _table("tinyllama-1.1b", "inner", "fp16", (2, 4, 8, 16), 1.04, 2.34, 4.70, 10.43)

ORIN_PARAMETERS = (
    "bandwidth_share",
    "rate_share",
    "full_rows",
    "nf4_operations",
    "launch_seconds",
    "adapter_seconds",
)
"""`activation_share` follows `bandwidth_share`: a GPU's caches do not hold what lies between."""
ONEPLUS_PARAMETERS = ("rate_share", "activation_share")
_START = {
    "bandwidth_share": 0.6,
    "rate_share": 0.4,
    "full_rows": 100.0,
    "activation_share": 0.1,
    "nf4_operations": 180.0,
    "launch_seconds": 1e-4,
    "adapter_seconds": 2e-3,
}
"""The starting values, so that a fit does not depend on what was stored before."""
_BOUNDS = {"bandwidth_share": (0.1, 1.0), "rate_share": (1e-3, 1.0), "full_rows": (1.0, 1e4)}


def with_parameters(device: DeviceProfile, values: dict[str, float]) -> DeviceProfile:
    """A device with other timing."""
    if device.compute.processor == "gpu":
        values = values | {"activation_share": values["bandwidth_share"]}
    return device.model_copy(update={"timing": device.timing.model_copy(update=values)})


@cache
def shape(model: str) -> ModelShape:
    return model_shape(model)


def residuals(device: DeviceProfile, cells: Sequence[Timed]) -> list[float]:
    """(model − measured) / measured of each cell."""
    return [
        step_time(shape(cell.model), device, cell.work).total / cell.seconds - 1 for cell in cells
    ]


def fitted(device: DeviceProfile, names: Sequence[str], cells: Sequence[Timed]) -> DeviceProfile:
    """The device with the parameters that suit the cells best."""
    start = [math.log(_START[name]) for name in names]
    limits = [_BOUNDS.get(name, (1e-9, 1e9)) for name in names]

    def device_at(x: NDArray[np.float64]) -> DeviceProfile:
        return with_parameters(device, dict(zip(names, np.exp(x).tolist(), strict=True)))

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log1p(residuals(device_at(x), cells))

    low, high = np.log(limits).T
    found = least_squares(errors, start, bounds=(low, high), diff_step=1e-3)
    return device_at(found.x)


def held_out(
    device: DeviceProfile,
    names: Sequence[str],
    cells: Sequence[Timed],
    groups: Sequence[Sequence[Timed]],
) -> float:
    """Mean error on the cells of each group, fitted to all cells outside of it."""
    errors = []
    for group in groups:
        rest = [cell for cell in cells if cell not in group]
        errors += residuals(fitted(device, names, rest), group)
    return fmean(map(abs, errors))


def grouped(cells: Sequence[Timed], key: Callable[[Timed], object]) -> list[list[Timed]]:
    """Cells that are alike in something."""
    keys = dict.fromkeys(map(key, cells))
    return [[cell for cell in cells if key(cell) == one] for one in keys]


def report(name: str, names: Sequence[str], cells: Sequence[Timed]) -> DeviceProfile:
    """Fit, hold out, print; the profile with timing and residuals."""
    start = load_device(name)
    device = fitted(start, names, cells)
    errors = residuals(device, cells)
    mean = fmean(map(abs, errors))
    alone = held_out(start, names, cells, [[cell] for cell in cells])
    print(f"{name}: {len(cells)} cells, {len(names)} parameters")
    for parameter in names:
        print(f"  {parameter:16} {getattr(device.timing, parameter):.4g}")
    for cell, error in zip(cells, errors, strict=True):
        print(
            f"  {cell.model:14} {cell.grouping:10} B={cell.batch:<3} {cell.seconds:6.2f} s "
            f"{error:+.1%}"
        )
    print(f"  mean error of the fit {mean:.1%}; each cell held out: {alone:.1%}")
    sizes = grouped(cells, lambda cell: cell.batch)
    groups = {
        "each batch size": sizes,
        "the largest batch size": sizes[-1:],
        "each grouping": grouped(cells, lambda cell: cell.grouping),
        "each model": grouped(cells, lambda cell: cell.model),
    }
    for what, some in groups.items():
        if len(some[0]) < len(cells):
            print(f"  {what} held out: {held_out(start, names, cells, some):.1%}")
    fit = TimingFit(
        fitted=[parameter.replace("_", "-") for parameter in names],
        mean_error=round(mean, 4),
        leave_one_out=round(alone, 4),
        cells=[
            MeasuredStep(
                model=cell.model,
                quantization=cell.quantization,
                grouping=cell.work.grouping,
                sequence=SEQUENCE,
                batch=cell.batch,
                seconds=cell.seconds,
                residual=round(error, 4),
            )
            for cell, error in zip(cells, errors, strict=True)
        ],
    )
    rounded = {key: float(f"{value:.4g}") for key, value in device.timing}
    timing = device.timing.model_copy(update=rounded)
    return device.model_copy(update={"timing": timing, "fit": fit})


def main() -> None:
    given = arguments(__doc__, write=False)
    orin = report("orin-nano-8gb", ORIN_PARAMETERS, ORIN_NANO)
    oneplus = report("oneplus-12", ONEPLUS_PARAMETERS, ONEPLUS_12)
    if given.write:
        for device in (orin, oneplus):
            save_profile(device, PROFILES / f"{device.name}.toml")
        for name in ("orin-nano-4gb", "orin-nx-16gb", "agx-orin-64gb"):
            sibling = load_device(name).model_copy(update={"timing": orin.timing})
            save_profile(sibling, PROFILES / f"{name}.toml")


if __name__ == "__main__":
    main()
