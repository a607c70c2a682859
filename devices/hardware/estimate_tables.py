"""The tables of `samara device estimate`."""

from dataclasses import asdict
from itertools import zip_longest

from rich.console import Console
from rich.table import Table

from samara.devices.hardware.estimate import StepEstimate
from samara.devices.hardware.full_parameter_estimate import FullParameterEstimate
from samara.devices.hardware.offload_estimate import FirstOrderEstimate

_STAGES = {
    "forward": "on the device",
    "backward": "on the device",
    "offload": "to the host",
    "update": "on the host",
    "upload": "to the device",
}


def print_step(result: StepEstimate) -> None:
    """Print the parts of a step with their seconds and bytes, and whether it fits."""
    table = Table(title=f"A step of {result.model} on {result.device} {result.mode}".rstrip())
    table.add_column("part")
    table.add_column("seconds", justify="right")
    table.add_column("part ")
    table.add_column("MiB", justify="right")
    times = [(name, f"{value:.3f}") for name, value in asdict(result.time).items()]
    sizes = [(name, f"{value / 2**20:,.0f}") for name, value in asdict(result.memory).items()]
    for (time, seconds), (part, size) in zip_longest(times, sizes, fillvalue=("", "")):
        table.add_row(time, seconds, part, size)
    table.add_section()
    table.add_row(
        "total", f"{result.time.total:.3f}", "peak", f"{result.memory.total / 2**20:,.0f}"
    )
    console = Console()
    console.print(table)
    if result.first_pass is not None:
        console.print(f"before the first step: {result.first_pass.total:.1f} s, once")
    if result.energy_joules is not None:
        console.print(f"energy: at most {result.energy_joules:.1f} J")
    usable = result.usable_bytes / 2**20
    if result.fits:
        console.print(f"fits: {usable:,.0f} MiB are available to a process")
    else:
        over = (result.memory.total - result.usable_bytes) / 2**20
        console.print(f"does not fit: {over:,.0f} MiB more than the {usable:,.0f} MiB available")
        remedies = "; or ".join(result.remedies) or "none of this command's options"
        console.print(f"options that make it fit: {remedies}")


def print_first_order(result: FirstOrderEstimate) -> None:
    """Print a first-order step's stages, its memory on device and host, and whether it fits."""
    stages = asdict(result.stages)
    work = result.work
    times = Table(title=f"A step of {result.model} with {work.method} on {result.device}")
    times.add_column("stage")
    times.add_column("seconds", justify="right")
    for name, where in _STAGES.items():
        times.add_row(f"{name} {where}", f"{stages[name]:.3f}")
    times.add_section()
    times.add_row("step, with overlap", f"{result.seconds:.3f}")
    times.add_row("Adam in enough memory", f"{result.resident_seconds:.3f}")
    sizes = Table()
    for column in ("part", "MiB on the device", "MiB on the host"):
        sizes.add_column(column, justify="left" if column == "part" else "right")
    on_device = asdict(result.memory)
    on_host = asdict(result.host_memory)
    for name in on_device:
        sizes.add_row(name, *(f"{memory[name] / 2**20:,.0f}" for memory in (on_device, on_host)))
    sizes.add_section()
    totals = (memory.total / 2**20 for memory in (result.memory, result.host_memory))
    sizes.add_row("peak", *(f"{total:,.0f}" for total in totals))
    console = Console()
    console.print(times)
    console.print(sizes)
    if result.fits:
        console.print(f"fits: {result.usable_bytes / 2**20:,.0f} MiB are available on the device")
    else:
        console.print(
            f"does not fit: {result.usable_bytes / 2**20:,.0f} MiB are available on the device; "
            f"these would fit: {'; or '.join(result.remedies) or 'none of the methods'}"
        )


def print_full_parameters(result: FullParameterEstimate) -> None:
    """Print the parts of a zeroth-order step on all parameters, and whether it fits."""
    work = result.work
    where = {"off": "in memory", "host": "streamed from the host", "disk": "streamed from disk"}
    table = Table(title=f"A step of {result.model} {where[work.stream]} on {result.device}")
    for column in ("part", "seconds", "part ", "MiB"):
        table.add_column(column, justify="left" if column.startswith("part") else "right")
    times = [(name, f"{value:.3f}") for name, value in asdict(result.time).items()]
    sizes = [(name, f"{value / 2**20:,.0f}") for name, value in asdict(result.memory).items()]
    for (time, seconds), (part, size) in zip_longest(times, sizes, fillvalue=("", "")):
        table.add_row(time, seconds, part, size)
    table.add_section()
    peak = f"{result.memory.total / 2**20:,.0f}"
    table.add_row("total", f"{result.time.total:.3f}", "peak", peak)
    console = Console()
    console.print(table)
    console.print(f"{result.tokens_per_second:,.0f} tokens/s")
    if result.stored_bytes:
        console.print(f"streamed blocks take {result.stored_bytes / 2**20:,.0f} MiB")
    if result.fits:
        console.print(f"fits: {result.usable_bytes / 2**20:,.0f} MiB are available on the device")
    else:
        remedies = "; or ".join(result.remedies) or "none of this command's options"
        console.print(
            f"does not fit: {result.usable_bytes / 2**20:,.0f} MiB are available on the device; "
            f"options that make it fit: {remedies}"
        )
