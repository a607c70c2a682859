"""The command `samara device wheelhouse`, which collects an installation for offline boards."""

from pathlib import Path
from typing import Annotated

import typer


def wheelhouse(
    jetpack: Annotated[int, typer.Option(help="The board's JetPack: 6 or 7.")],
    out: Annotated[Path, typer.Option(help="New folder, for example on a USB stick.")],
    python: Annotated[str, typer.Option(help="Python version on the board.")] = "3.12",
    source: Annotated[
        str,
        typer.Option("--from", help="Checkout, wheel, or samara-fl; default: this installation's."),
    ] = "",
    torch_index: Annotated[
        str, typer.Option(help="Package index for torch; default: the index of the JetPack.")
    ] = "",
    torch_wheel: Annotated[
        str, typer.Option(help="URL of a torch wheel, with --sha256, instead of an index.")
    ] = "",
    sha256: Annotated[str, typer.Option(help="Checksum of --torch-wheel, 64 hex digits.")] = "",
) -> None:
    """Make a folder from which a Jetson board installs Samara without a network.

    The same command continues after an interruption. On the board: sudo DIR/install.sh

    Example: samara device wheelhouse --jetpack 7 --out /media/stick/samara
    """
    from tempfile import TemporaryDirectory

    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from samara.devices.jetson.downloads import RemoteFile
    from samara.devices.jetson.wheelhouse import (
        Request,
        installed_source,
        make_plan,
        make_wheelhouse,
    )
    from samara.shared.errors import ConfigError

    if sha256 and not torch_wheel:
        raise ConfigError("--sha256 is the checksum of --torch-wheel URL, which is missing")
    chosen = RemoteFile(torch_wheel, sha256.lower()) if torch_wheel else None
    request = Request(jetpack, out, python, source or installed_source(), torch_index, chosen)
    request.check()
    with TemporaryDirectory() as work:
        typer.echo("asking the package indexes for the board's packages")
        plan = make_plan(request, Path(work))
        typer.echo(
            f"torch {plan.version_of('torch')} and {len(plan.files) - 1} more files, "
            f"{plan.size / 1e6:,.0f} MB"
        )
        for sentence in plan.missing:
            typer.echo(sentence)
        with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn()) as progress:
            task = progress.add_task("", total=plan.size)
            make_wheelhouse(plan, lambda size: progress.advance(task, size))
    typer.echo(f"{out} is complete. On the board, without a network: sudo {out.name}/install.sh")
