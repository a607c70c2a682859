"""The command `samara device run`, which runs any command within a device profile's limits."""

import sys
from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(help="Command and its arguments, after --.")],
    device: Annotated[
        str, typer.Option("--as", help="Profile: a name from device estimate --list, or a file.")
    ],
    link: Annotated[str, typer.Option(help="Link profile; default: this machine's network.")] = "",
    dilation: Annotated[
        float,
        typer.Option(min=1, help="Seconds on this machine per second of a faster device."),
    ] = 1.0,
    power: Annotated[str, typer.Option(help="Power mode, e.g. 7W; default: the profile's.")] = "",
) -> None:
    """Run a command with the memory, the speed and the link of a device.

    Control groups limit memory and speed; a network namespace, which needs root, limits the link.

    Example: samara device run --as orin-nano-8gb --dilation 20 -- python train.py
    """
    from samara.devices.hardware.hold import machine_rate, plan_hold, run_held, status_of
    from samara.devices.hardware.profile import load_device, load_link
    from samara.shared.machine.process import cores

    profile = load_device(device)
    profile = profile.with_power_mode(power) if power else profile
    way = load_link(link) if link else None
    hold = plan_hold(profile, way, dilation, machine_rate(), cores())
    raise typer.Exit(status_of(run_held(hold, command, lambda line: print(line, file=sys.stderr))))
