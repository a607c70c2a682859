"""The command that brings a device into a run."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Take part in a run with this device.", no_args_is_help=True)


@app.callback()
def client() -> None:
    """Take part in a run with this device."""


@app.command()
def up(
    superlink: Annotated[str, typer.Option(help="Of the server, host:port.")],
    name: Annotated[str, typer.Option(help="What you call this client.")],
    model: Annotated[str, typer.Option(help="Folder, or name on the hub.")] = "embedded",
    data: Annotated[str, typer.Option(help="File, folder, or name on the hub.")] = "messages",
    task: Annotated[str, typer.Option(help="Shipped task, or a task file.")] = "messages",
    device: Annotated[str, typer.Option(help="cpu, cuda, or a name of device list.")] = "cpu",
    stream: Annotated[
        str, typer.Option(help="auto, host, disk, off: where blocks wait that do not fit.")
    ] = "auto",
    key: Annotated[Path | None, typer.Option(help="From `samara server keys create`.")] = None,
    certs: Annotated[Path | None, typer.Option(help="CA certificate of the server.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text, no key.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Of model, data, threads, memory: key=value.")
    ] = None,
    trust: Annotated[
        list[str] | None, typer.Option(help="SHA-256 of another app to accept.")
    ] = None,
    max_temperature: Annotated[
        float, typer.Option(min=0, help="°C to pause above; 0 is none.")
    ] = 0.0,
    mains_only: Annotated[bool, typer.Option("--mains-only", help="Pause on battery.")] = False,
    idle_only: Annotated[bool, typer.Option("--idle-only", help="Pause when busy.")] = False,
    home: Annotated[Path | None, typer.Option(help="Default ~/.samara/NAME.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="One local step, then end.")] = False,
) -> None:
    """Check this device, load the model once, and serve a run until it is told to end.

    Example: samara client up --superlink example.org:8000 --name kitchen-orin --key kitchen.key
    --certs ca.pem --model MODEL --data DATA --task sst2 --device jetson-orin-nano
    """
    from devices.live import client_supervisor as live
    from devices.live.settings import (
        ClientSettings,
        check_name,
        parse_address,
        resolve_device,
        resolve_device_settings,
    )
    from shared.errors import ConfigError

    parse_address(superlink)
    folder = (home or Path.home() / ".samara" / check_name(name)).expanduser().absolute()
    if not insecure and key is None and not dry_run:
        raise ConfigError(
            "--key FILE is missing; the server's `samara server keys create` makes it"
        )
    processor, profile = resolve_device(device)
    device_settings = resolve_device_settings(
        model, data, task, processor, [f"model.stream={stream}", *(settings or [])]
    )
    client_settings = ClientSettings(
        name=check_name(name),
        folder=folder,
        superlink=superlink,
        device=live.load_client_index(folder, key),
        device_settings=device_settings,
        profile=profile,
        key=key.expanduser().absolute() if key else None,
        certificates=certs.expanduser().absolute() if certs else None,
        insecure=insecure,
        trusted=tuple(trust or ()),
        max_temperature=max_temperature,
        mains_only=mains_only,
        idle_only=idle_only,
    )
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("samara").setLevel(logging.INFO)
    if dry_run:
        live.dry_run(client_settings)
    else:
        live.up(client_settings)
