"""The commands for invitations, keys of clients and server, and signed scenarios."""

from pathlib import Path
from typing import Annotated

import typer

from samara.shared.command_group import command_group

app = command_group("Create and replace the keys of a run's clients and server.")
RunOption = Annotated[Path, typer.Option("--run", help="Folder of a run.")]
Name = Annotated[str, typer.Argument(help="Name of the client.")]


@app.command()
def create(
    name: Name,
    run: RunOption,
    public: Annotated[
        Path | None, typer.Argument(help="Public key (PEM) of a client that made its key itself.")
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Create the key of a gateway for phones or boards.")
    ] = False,
) -> None:
    """Create a client's key, or register a key that the client made; also during a run.

    A client with an invitation does not need this command.

    Example: samara server keys create kitchen-orin --run runs/field
    """
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys
    from samara.shared.errors import ConfigError

    keys = ClientKeys(run / KEYS_FOLDER)
    if public:
        if gateway:
            raise ConfigError(
                "--gateway: a gateway's key is created by this command; leave out PUBLIC"
            )
        print(f"{name} may join as client {keys.add(name, public).client}")
        return
    holder = "gateway" if gateway else "client"
    print(
        f"{keys.create(name, gateway)}: copy this file to the {holder} {name}, then delete it here"
    )


@app.command()
def rotate(
    run: RunOption,
    name: Annotated[
        str, typer.Argument(help="Name of the client; without a name, the server's key.")
    ] = "",
    public: Annotated[
        Path | None, typer.Argument(help="Public key (PEM) of a client that made its key itself.")
    ] = None,
) -> None:
    """Replace a client's key, or the server's key and certificate; also during a run.

    The client keeps its client index, and its earlier key is refused. The server keeps its
    certificate authority, so that clients still trust the server.

    Example: samara server keys rotate kitchen-orin --run runs/field
    """
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys
    from samara.shared.network.certificates import (
        CERTIFICATES_FOLDER,
        certificate_end,
        renew_certificate,
    )

    if not name:
        file = renew_certificate(run / CERTIFICATES_FOLDER).certificate
        print(f"{file}: valid until {certificate_end(file):%Y-%m-%d}; a running server loads it")
        return
    keys = ClientKeys(run / KEYS_FOLDER)
    if public:
        client = keys.rotate_to(name, public).client
        print(
            f"{name} remains client {client} with the key in {public}; its gateway, if any, also "
            "needs this key"
        )
        return
    file = keys.rotate(name)
    print(f"{file}: copy this file to {name} over its earlier key, then delete it here")


def sign(
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file.")] = None,
    key: Annotated[Path | None, typer.Option(help="Your key, made by --make-key.")] = None,
    out: Annotated[Path | None, typer.Option(help="Signed file for the clients.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
    make_key: Annotated[
        Path | None, typer.Option(help="Create a key in this file; keep it off the server.")
    ] = None,
) -> None:
    """Sign a scenario, so that clients obey only its settings; give `server up` the same settings.

    Example: samara server sign field.toml --key operator.key --out field.signed
    """
    from samara.server.live.live_config import read_live_config
    from samara.server.live.scenario_signing import create_operator_key, sign_scenario
    from samara.shared.errors import ConfigError

    if make_key and not (key or out or scenario or settings):
        operator = create_operator_key(make_key)
        print(f"{make_key}: key of operator {operator}; do not copy it to the server")
        return
    if make_key or not (key and out):
        raise ConfigError("sign with --key KEY and --out FILE, or make a key with --make-key alone")
    config = read_live_config(scenario, settings or [], "server sign")
    signed = sign_scenario(config, key, out)
    print("\n".join([f"{out}: {signed.name}; give this file to clients", *signed.describe()]))


def invite(
    name: Name,
    run: RunOption,
    address: Annotated[
        str, typer.Option(help="Address at which the device reaches the server, host:port.")
    ] = "",
    scenario: Annotated[
        Path | None, typer.Option(help="Signed scenario from `samara server sign`.")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=720, help="Validity in hours.")] = 24.0,
    authority: Annotated[
        Path | None,
        typer.Option("--ca", help="PEM that verifies the server; by default the run's."),
    ] = None,
    qr: Annotated[bool, typer.Option("--qr", help="Also print a QR code of the line.")] = False,
    program: Annotated[
        Path | None, typer.Option(help="Program for a phone, from `samara phone export`.")
    ] = None,
    gateway: Annotated[
        str, typer.Option(help="Address at which the device reaches its gateway, host:port.")
    ] = "",
    gateway_authority: Annotated[
        Path | None,
        typer.Option("--gateway-ca", help="PEM that verifies the gateway's certificate."),
    ] = None,
    page: Annotated[
        str, typer.Option(help="Address of the gateway's page, https://..., for a browser.")
    ] = "",
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Exclude the device instead, even if it has joined.")
    ] = False,
) -> None:
    """Print the command line with which a device joins a run, or exclude a device with --revoke.

    The private key never leaves the device. A phone joins through a gateway and also receives its
    program. A board joins directly or through a gateway. With --page, the command prints a link for
    a phone's browser and a QR code of the link.

    Example: samara server invite kitchen-orin --run runs/field --scenario field.signed
    """
    from datetime import UTC, datetime, timedelta

    from samara.server.live.certificates import server_address
    from samara.server.live.invitations import (
        board_welcome,
        exclude_client,
        invite_client,
        phone_welcome,
    )
    from samara.server.live.run_supervisor import FLOWER_FOLDER
    from samara.server.live.server_port import read_port
    from samara.shared.errors import ConfigError
    from samara.shared.network.addresses import parse_address, parse_origin
    from samara.shared.network.certificates import CERTIFICATES_FOLDER

    if revoke:
        print(exclude_client(run, name))
        return
    if page and (program or gateway or gateway_authority):
        raise ConfigError(
            "--page: a browser gets its program and its stream from the page's gateway; leave out "
            "--program, --gateway and --gateway-ca"
        )
    origin = parse_origin(page, "--page") if page else ""
    if authority is None:
        authority, address = server_address(
            run / CERTIFICATES_FOLDER, read_port(run / FLOWER_FOLDER), address
        )
    else:
        parse_address(address, "--address")
    phone = board = None
    if gateway and gateway_authority:
        parse_address(gateway, "--gateway")
        if program:
            phone = phone_welcome(run, gateway, gateway_authority, program)
        else:
            board = board_welcome(gateway, gateway_authority)
    elif gateway or gateway_authority or program:
        raise ConfigError(
            "a phone needs --program, --gateway and --gateway-ca; a board that attaches to a "
            "gateway needs --gateway and --gateway-ca"
        )
    end = datetime.now(UTC) + timedelta(hours=hours)
    code = invite_client(run, name, authority, scenario, end, phone, board)
    command = f"phone join {address} {code}" if phone else f"client join {address} {code}"
    line = f"{origin}/#join={code}" if page else f"samara {command} --name {name}"
    print(line)
    typer.echo(f"valid once, only for {name}, until {end:%Y-%m-%d %H:%M} UTC", err=True)
    if qr or page:
        import segno

        segno.make(line, error="l").terminal(compact=True)
