"""The commands `samara device`: profiles, estimates, calibration, and running within limits."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from click.core import ParameterSource

from samara.devices.hardware.run_command import run
from samara.devices.jetson.commands import wheelhouse
from samara.shared.command_group import command_group

if TYPE_CHECKING:
    from samara.devices.hardware.estimate import StepEstimate
    from samara.devices.hardware.estimate_settings import StepSettings
    from samara.devices.hardware.model_shape import ModelShape
    from samara.devices.hardware.offload_estimate import FirstOrderMethod
    from samara.devices.hardware.profile import DeviceProfile, Stream

_FIRST_PASS_EXAMPLES = 8
"""Maximum number of examples in a forward pass before a readout's first step.

It is `PASS_EXAMPLES` of a client without a memory budget.
"""
_WITHOUT_SCENARIO = ("optimizer", "quantization")
"""Command-line parameters that the scenario, if there is one, decides."""
app = command_group("Device profiles, and estimates of a step's cost.")


class Quantization(StrEnum):
    """The storage type of the weights in the blocks."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"
    NF4 = "nf4"


class Optimizer(StrEnum):
    """The training method of the model."""

    PRGE = "prge"
    MEZO = "mezo"
    FO_ADAM = "fo-adam"
    LORA = "lora"
    ZERO_OFFLOAD = "zero-offload"
    LSP = "lsp"


@app.command()
def estimate(
    context: typer.Context,
    scenario: Annotated[
        Path | None, typer.Argument(help="Scenario with the step's settings, as in simulate.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="Profile: a name from --list, or a file; default laptop.")
    ] = "laptop",
    model: Annotated[
        str, typer.Option(help="llama2-7b, opt-13b, …, or a config.json or its folder.")
    ] = "",
    data: Annotated[
        str, typer.Option(help="With SCENARIO: data whose examples and tokens are counted.")
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            help="With SCENARIO: estimate the time until a gain in points of accuracy, e.g. +3."
        ),
    ] = "",
    optimizer: Annotated[
        Optimizer, typer.Option(help="prge, mezo (all parameters), or a first-order method.")
    ] = Optimizer.PRGE,
    quantization: Annotated[Quantization, typer.Option()] = Quantization.FP16,
    seq: Annotated[int, typer.Option(min=1, help="Tokens of an example.")] = 64,
    batch: Annotated[int, typer.Option(min=1, help="Examples of a step, B.")] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of docs/guides/devices.md: key=value. Repeatable."),
    ] = None,
    power: Annotated[str, typer.Option(help="Power mode, e.g. 7W; default: the profile's.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    show_profiles: Annotated[
        bool, typer.Option("--list", help="Show the profiles of devices and links.")
    ] = False,
) -> None:
    """Predict seconds, peak memory and energy of a training step, from the model's config alone.

    SCENARIO selects the step of `samara simulate`; --target adds the time until a gain.

    Example: samara device estimate --device orin-nano-8gb --model llama2-7b --quantization nf4
    """
    from dataclasses import replace
    from json import dumps

    from samara.devices.hardware.estimate import estimate_readout, estimate_step
    from samara.devices.hardware.estimate_settings import StepSettings
    from samara.devices.hardware.estimate_tables import print_step
    from samara.devices.hardware.model_shape import model_shape
    from samara.devices.hardware.profile import load_device
    from samara.devices.hardware.roofline import Workload
    from samara.shared.errors import ConfigError
    from samara.shared.settings.setting import parse_assignment

    if show_profiles:
        _show_profiles()
        return
    if scenario is not None:
        _estimate_scenario(context, scenario, target)
        return
    if target or data or not model:
        option = "--target" if target else "--data"
        missing = f"{option} needs a SCENARIO" if target or data else "set --model or a SCENARIO"
        raise ConfigError(f"{missing}; for example: samara device estimate sst2 --device {device}")
    given = StepSettings.of(dict(map(parse_assignment, settings or [])), "device estimate")
    profile = load_device(device)
    profile = profile.with_power_mode(power) if power else profile
    if given.model.stream == "host" and profile.host is None:
        raise ConfigError(
            f"model.stream=host: the processors of {profile.name} share one memory, so streaming "
            "from the host saves nothing; choose off or disk"
        )
    shape = model_shape(model)
    if optimizer is Optimizer.MEZO:
        _estimate_full_parameters(shape, profile, given, quantization, seq, batch, json)
        return
    if optimizer is not Optimizer.PRGE:
        _estimate_first_order(shape, profile, given, optimizer, quantization, seq, batch, json)
        return
    work = Workload(
        sequence=seq,
        batch=batch,
        queries=given.queries,
        grouping=given.grouping,
        differences=given.differences,
        quantization=quantization.value,
        top=given.adapter.top,
        rank=given.adapter.rank,
        supervised=given.supervised,
        stream=_first_stream(given),
    )

    def predict(work: Workload) -> "StepEstimate":
        if given.readout_labels:
            in_pass = replace(work, batch=min(batch, _FIRST_PASS_EXAMPLES))
            return estimate_readout(shape, profile, in_pass, given.readout_labels, batch)
        return estimate_step(shape, profile, work)

    result = predict(work)
    for stream in _other_streams(given, profile):
        if not result.fits:
            result = predict(replace(work, stream=stream))
    typer.echo(dumps(result.as_json())) if json else print_step(result)


def _estimate_full_parameters(
    shape: "ModelShape",
    profile: "DeviceProfile",
    given: "StepSettings",
    quantization: Quantization,
    sequence: int,
    batch: int,
    json: bool,
) -> None:
    """Print the estimate of a zeroth-order step on all parameters."""
    from dataclasses import replace
    from json import dumps

    from samara.devices.hardware.estimate_tables import print_full_parameters
    from samara.devices.hardware.full_parameter_estimate import (
        FullParameterWorkload,
        estimate_full_parameters,
    )
    from samara.shared.errors import ConfigError

    if given.readout_labels or quantization.value not in ("fp16", "fp32"):
        raise ConfigError(
            "--optimizer mezo: this optimizer trains the model's own weights in fp16 or fp32; "
            "leave out "
            "readout-labels, and choose --quantization fp16 or fp32"
        )
    is_float32 = quantization is Quantization.FP32
    work = FullParameterWorkload(
        sequence=sequence,
        batch=batch,
        queries=given.queries,
        precision="fp32" if is_float32 else "fp16",
        stream=_first_stream(given),
        in_place=is_float32 if given.in_place == "auto" else given.in_place,
    )
    result = estimate_full_parameters(shape, profile, work)
    for stream in _other_streams(given, profile):
        if not result.fits:
            result = estimate_full_parameters(shape, profile, replace(work, stream=stream))
    typer.echo(dumps(result.as_json())) if json else print_full_parameters(result)


def _estimate_first_order(
    shape: "ModelShape",
    profile: "DeviceProfile",
    given: "StepSettings",
    optimizer: Optimizer,
    quantization: Quantization,
    sequence: int,
    batch: int,
    json: bool,
) -> None:
    """Print the estimate of a first-order step."""
    from json import dumps

    from samara.devices.hardware.estimate_tables import print_first_order
    from samara.devices.hardware.offload_estimate import FirstOrderWorkload, estimate_first_order
    from samara.shared.errors import ConfigError

    foreign = given.readout_labels or given.model.stream != "off"
    if foreign or quantization.value not in ("fp16", "fp32"):
        raise ConfigError(
            f"--optimizer {optimizer.value}: this optimizer trains the model's own weights in "
            f"fp16 or fp32, "
            "in memory; leave out readout-labels and model.stream, and choose "
            "--quantization "
            "fp16 or fp32"
        )
    first_order = FirstOrderWorkload(
        method=cast("FirstOrderMethod", optimizer.value),
        sequence=sequence,
        batch=batch,
        precision="fp16" if quantization is Quantization.FP16 else "fp32",
        subspace=given.lsp.subspace_size,
        nonzeros=given.lsp.nonzeros,
        rank=given.adapter.rank,
        layerwise=given.offload.schedule == "layer-wise",
        checkpointing=given.offload.checkpointing == "on",
    )
    predicted = estimate_first_order(shape, profile, first_order)
    typer.echo(dumps(predicted.as_json())) if json else print_first_order(predicted)


def _first_stream(given: "StepSettings") -> "Stream":
    """Return the initial place of the blocks; `auto` starts on the device."""
    return "off" if given.model.stream == "auto" else given.model.stream


def _other_streams(given: "StepSettings", profile: "DeviceProfile") -> "list[Stream]":
    """Return the places besides the device in which `auto` may store blocks, fastest first."""
    others: list[Stream] = ["host", "disk"] if given.model.stream == "auto" else []
    return [stream for stream in others if profile.has_stream(stream)]


def _show_profiles() -> None:
    """Print the shipped device and link profiles."""
    from rich.console import Console
    from rich.table import Table

    from samara.devices.hardware.profile import shipped_devices, shipped_links

    devices = Table(title="Devices")
    for column in ("name", "description", "GB/s", "usable GiB", "power modes", "fit"):
        devices.add_column(column, no_wrap=column == "name")
    for device in shipped_devices():
        devices.add_row(
            device.name,
            device.description,
            f"{device.memory.bandwidth / 1e9:g}",
            f"{device.usable_bytes / 2**30:.1f}",
            ", ".join(device.power),
            f"{device.fit.leave_one_out:.1%}" if device.fit else "assumed",
        )
    links = Table(title="Links")
    for column in ("name", "description", "Mbit/s down", "up", "latency ms", "loss", "hours a day"):
        links.add_column(column, no_wrap=column == "name")
    for link in shipped_links():
        links.add_row(
            link.name,
            link.description,
            f"{link.down * 8e-6:g}",
            f"{link.up * 8e-6:g}",
            f"{link.latency * 1e3:g}",
            f"{link.loss:.1%}",
            f"{link.hours:g}",
        )
    console = Console()
    console.print(devices)
    console.print(links)
    console.print("fit: mean error of predicted step times on held-out published measurements")


def _estimate_scenario(context: typer.Context, scenario: Path, target: str) -> None:
    """Print the estimate of a scenario's step, and of the time until a target."""
    from json import dumps

    from samara.devices.hardware.estimate_tables import print_step
    from samara.devices.hardware.profile import load_device
    from samara.devices.hardware.run_data import count_data
    from samara.devices.hardware.target import estimate_target, parse_points, step_of
    from samara.shared.errors import ConfigError
    from samara.shared.settings.config import load_scenario
    from samara.shared.settings.scenarios import scenario_file

    given = context.params
    typed = ParameterSource.COMMANDLINE
    asked = [name for name in given if context.get_parameter_source(name) is typed]
    if foreign := [name for name in asked if name in _WITHOUT_SCENARIO]:
        raise ConfigError(
            f"--{foreign[0]}: the scenario decides this value; change it in the scenario or with "
            f"--set, or leave SCENARIO out"
        )
    points = parse_points(target) if target else 0.0
    places = [f"model.path={given['model']}"] if given["model"] else []
    places += [f"data.path={given['data']}"] if given["data"] else []
    places += [f"batch={given['batch']}"] if "batch" in asked else []
    assignments = [*places, *(given["settings"] or [])]
    config, tokens, is_counted = count_data(load_scenario(scenario_file(scenario), assignments))
    profile = load_device(given["device"])
    profile = profile.with_power_mode(given["power"]) if given["power"] else profile
    step = step_of(config, profile, given["seq"] if "seq" in asked else tokens)
    reached = estimate_target(config, step, points) if points else None
    if given["json"]:
        typer.echo(dumps(step.as_json() | ({"target": reached.as_json()} if reached else {})))
        return
    print_step(step)
    most = "" if is_counted else "up to "
    typer.echo(
        f"{scenario}: {config.steps} steps a round of {config.queries} directions on {most}"
        f"{config.batch:,} examples of {step.work.sequence} tokens, adapter {config.adapter.layers}"
    )
    if not is_counted and not {"batch", "seq"} <= set(asked):
        typer.echo(
            "these counts are the maximum that the settings allow; most data are smaller. Use "
            "--data DATA to count your own data"
        )
    if reached:
        typer.echo(reached.describe())


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(help="File to write the profile to.")] = Path(
        "this-machine.toml"
    ),
    watts: Annotated[float, typer.Option(min=0, help="Power drawn at full load; 0: unknown.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: one per core.")] = 0,
) -> None:
    """Measure this machine's CPU and memory, and write a device profile.

    Example: samara device calibrate --out this-machine.toml
    """
    import re

    from samara.devices.hardware.calibrate import calibrate_cpu
    from samara.devices.hardware.profile import save_profile
    from samara.shared.storage.files import check_requested

    if not out.parent.is_dir():
        raise typer.BadParameter(
            f"--out {out}: the folder of this file does not exist; create the folder first"
        )
    check_requested(out, b"samara device calibrate")  # the source of its values
    name = re.sub("[^a-z0-9.-]+", "-", out.stem.lower()).strip("-.") or "this-machine"
    profile = calibrate_cpu(name, watts, threads)
    save_profile(profile, out)
    typer.echo(
        f"{profile.memory.bandwidth / 1e9:.1f} GB/s, {profile.compute.fp32 / 1e9:.0f} Gop/s, "
        f"{profile.timing.launch_seconds * 1e6:.1f} µs an operation; profile in {out}"
    )


app.command()(run)
app.command()(wheelhouse)
