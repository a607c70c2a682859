"""The command `samara client`: take part in a run with this machine."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from samara.devices.live.owner import commands as owner_commands
from samara.devices.live.owner import learning_command, question_commands
from samara.devices.live.owner.commands import Home, Name
from samara.shared.command_group import command_group

app = command_group("Take part in a run with this machine.")


class WireName(StrEnum):
    """The wires by which a client can reach the server."""

    FLOWER = "flower"
    STREAM = "stream"


@app.callback()
def client() -> None:
    """Take part in a run with this machine."""


@app.command()
def up(
    name: Name,
    superlink: Annotated[
        str, typer.Option(help="Address of the server, host:port; default: the joined server.")
    ] = "",
    wire: Annotated[
        WireName | None,
        typer.Option(
            help="flower: a SuperNode; stream: a gateway. Default: the previous choice, or flower."
        ),
    ] = None,
    gateways: Annotated[
        list[str] | None,
        typer.Option(
            "--gateway",
            help="With --wire stream: host:port of a gateway. Repeatable; tried in turn.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Model folder, or name on the hub.")] = "embedded",
    data: Annotated[str, typer.Option(help="Data file, folder, or name on the hub.")] = "messages",
    task: Annotated[str, typer.Option(help="Shipped task, or a task file.")] = "messages",
    device: Annotated[str, typer.Option(help="cpu, cuda, or a device profile.")] = "cpu",
    key: Annotated[
        Path | None, typer.Option(help="Key file from `samara server keys create`.")
    ] = None,
    certs: Annotated[
        Path | None, typer.Option(help="CA certificate of the server or gateway.")
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario that the operator has signed.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use plain text and no key.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting of docs/reference/client-up.md: key=value. Repeatable."
        ),
    ] = None,
    home: Home = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Draw the status on the terminal.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Do one local step, then exit.")
    ] = False,
) -> None:
    """Run the preflight, load the model once, and serve a run until Ctrl-C or SIGTERM.

    Example: samara client up --name kitchen-orin --model MODEL --data DATA --task sst2
    """
    from samara.client.protocol.scenario_folder import take_scenario
    from samara.devices.jetson.nvpmodel import check_power_mode
    from samara.devices.live import client_supervisor as live
    from samara.devices.live.client_folder import check_name, client_folder
    from samara.devices.live.settings import (
        ClientSettings,
        resolve_device,
        resolve_device_settings,
        split_owner_settings,
    )
    from samara.devices.live.wire_choice import WireChoice, choose_wire
    from samara.shared.errors import ConfigError
    from samara.shared.machine.process import log_to_stderr
    from samara.shared.tasks.catalog import load_task
    from samara.shared.tasks.embedded import check_data_is_given

    folder = client_folder(name, home)
    given = WireChoice(wire.value if wire else None, superlink, tuple(gateways or ()), key, certs)
    chosen = choose_wire(folder, given, may_lack_key=insecure or dry_run)
    owner, of_device = split_owner_settings(settings or [])
    if chosen.wire == "stream" and owner.share_energy:
        raise ConfigError(
            "owner.share-energy: a gateway does not pass on the costs of a round; leave the "
            "setting out, or use --wire flower"
        )
    key = chosen.key
    certs = chosen.certificates
    processor, profile = resolve_device(device)
    device_settings = resolve_device_settings(
        model, data, task, processor, ["model.stream=auto", *of_device]
    )
    check_data_is_given(load_task(str(device_settings["task"])), str(device_settings["data.path"]))
    check_power_mode(owner.power_mode)
    client_settings = ClientSettings(
        name=check_name(name),
        folder=folder,
        superlink=chosen.superlink,
        wire=chosen.wire or "flower",
        gateways=chosen.gateways,
        client_index=live.load_client_index(folder, key),
        device_settings=device_settings,
        profile=profile,
        key=key.expanduser().absolute() if key else None,
        certificates=certs.expanduser().absolute() if certs else None,
        insecure=insecure,
        **owner.model_dump(),
    )
    log_to_stderr()
    if scenario:
        print("\n".join(take_scenario(scenario, folder)), flush=True)
    if dry_run:
        live.dry_run(client_settings)
    else:
        live.up(client_settings, dashboard)


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="Address of the server, host:port.")],
    code: Annotated[str, typer.Argument(help="Code of the invitation.")],
    name: Name,
    home: Home = None,
) -> None:
    """Join a run with the line printed by `samara server invite`; needed once.

    Example: samara client join example.org:8000 CODE --name kitchen-orin
    """
    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.join import join_run
    from samara.devices.live.start_command import describe_start
    from samara.shared.network.invitation import InvitationCode

    folder = client_folder(name, home)
    joined = join_run(address, InvitationCode.parse(code), folder)
    at = folder if home else None
    print("\n".join([*joined.lines, *describe_start(name, at, joined.names)]))


@app.command()
def status(
    name: Name = "",
    home: Home = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Write a report file instead, to send when you need help."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Path of the report; default: NAME-report.json in this folder."),
    ] = None,
) -> None:
    """Show this client's runs, private rounds, energy, pauses and examples, even while it runs.

    A report has versions, device, status and the last messages. It has no texts, labels, keys or
    paths; look at it before you send it.

    Example: samara client status --name kitchen-orin
    """
    from rich.console import Console

    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.client_status import StatusReader
    from samara.devices.live.report import write_report
    from samara.devices.live.status_display import render_status
    from samara.shared.errors import ConfigError

    folder = client_folder(name, home)
    if report:
        file = (out or Path(f"{name or folder.name}-report.json")).absolute()
        count = len(write_report(folder, file)["messages"])
        print(f"{file}: the report has {count} messages, and no texts, labels, keys or paths")
    elif out:
        raise ConfigError("--out names the file of --report; give both options")
    else:
        Console().print(render_status(StatusReader(folder).read()))


@app.command()
def audit(
    name: Name = "",
    home: Annotated[
        Path | None, typer.Option(help="Folder of the client or phone; default ~/.samara/NAME.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the requests to this client or phone and the data it has sent, even while it runs.

    Example: samara client audit --name kitchen-orin
    """
    import json

    from rich.console import Console

    from samara.client.limits.answer_log import read_answers
    from samara.devices.live.client_audit import CLOCK_NOTE, describe_history, make_tables
    from samara.devices.live.client_folder import SETTINGS_FILE, client_folder
    from samara.devices.live.settings import ClientSettings
    from samara.devices.live.status_display import SHARES_ENERGY
    from samara.shared.errors import DeviceError

    folder = client_folder(name, home)
    if not folder.is_dir():
        raise DeviceError(f"{folder}: there is no client; check --name or --home")
    history = read_answers(folder)
    if as_json:
        print(json.dumps(describe_history(folder, history), indent=1))
        return
    console = Console()
    if not history.all_totals:
        print(f"{folder}: this client has answered nothing yet")
        return
    for table in make_tables(history):
        console.print(table)
    print(CLOCK_NOTE)
    if (folder / SETTINGS_FILE).exists() and ClientSettings.read(folder).share_energy:
        print(SHARES_ENERGY)
    if history.damaged:
        print(f"{history.damaged} damaged lines of the log are left out")


app.command()(question_commands.ask)
app.command()(question_commands.serve)
app.command()(learning_command.learn)
app.command()(owner_commands.export)
app.command()(owner_commands.move)
app.command()(owner_commands.forget)
