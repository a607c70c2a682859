"""The commands about the keys of a run: clients', the server's and the operator's."""

from pathlib import Path
from typing import Annotated

import typer

from samara.shared.command_group import command_group

app = command_group("The keys of the clients that may join a run.")
RunOption = Annotated[Path, typer.Option("--run", help="Folder of a run.")]
Name = Annotated[str, typer.Argument(help="Name of the client.")]


@app.command()
def create(
    name: Name,
    run: RunOption,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="The key is for a gateway, which phones attach to.")
    ] = False,
) -> None:
    """Make the key that a client needs to join a run, also while it is running.

    Example: samara server keys create kitchen-orin --run runs/field
    """
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys

    file = ClientKeys(run / KEYS_FOLDER).create(name, gateway)
    print(
        f"{file}: copy it to the {'gateway' if gateway else 'client'} {name}, then delete it here"
    )


@app.command()
def add(
    name: Name, public: Annotated[Path, typer.Argument(help="Public key, PEM.")], run: RunOption
) -> None:
    """Register the key of a client that made it itself, such as a phone; also during a run.

    Example: samara server keys add one phones/one.pem --run runs/field
    """
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys

    print(f"{name}: may join as client {ClientKeys(run / KEYS_FOLDER).add(name, public).client}")


@app.command()
def revoke(name: Name, run: RunOption) -> None:
    """Revoke the key of a client, also while a run is running.

    Example: samara server keys revoke kitchen-orin --run runs/field
    """
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys

    print(f"{name}: revoked on {ClientKeys(run / KEYS_FOLDER).revoke(name).revoked}")


@app.command()
def rotate(
    name: Name,
    run: RunOption,
    public: Annotated[
        Path | None,
        typer.Argument(help="Public key (PEM) of a client that made it itself, such as a phone."),
    ] = None,
) -> None:
    """Give a client a new key; it stays the same client, and its earlier key is refused.

    Example: samara server keys rotate kitchen-orin --run runs/field
    """
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys

    keys = ClientKeys(run / KEYS_FOLDER)
    if public:
        client = keys.rotate_to(name, public).client
        print(f"{name}: stays client {client} with the key in {public}; a gateway needs it too")
        return
    file = keys.rotate(name)
    print(f"{file}: copy it to {name} in place of its earlier key, then delete it here")


@app.command()
def renew(run: RunOption) -> None:
    """Give the server a new key and certificate; clients go on with the authority they have.

    Example: samara server keys renew --run runs/field
    """
    from samara.shared.certificates import CERTIFICATES_FOLDER, certificate_end, renew_certificate

    file = renew_certificate(run / CERTIFICATES_FOLDER).certificate
    print(f"{file}: valid until {certificate_end(file):%Y-%m-%d}; a running server takes it up")


@app.command()
def operator(
    file: Annotated[Path, typer.Argument(help="File of the private key, on your own machine.")],
) -> None:
    """Make the key with which you sign scenarios; the server does not need it.

    Example: samara server keys operator operator.key
    """
    from samara.server.live.scenario_signing import create_operator_key

    print(f"{file}: key of operator {create_operator_key(file)}; keep it away from the server")


@app.command()
def sign(
    key: Annotated[Path, typer.Option(help="Key from `samara server keys operator`.")],
    out: Annotated[Path, typer.Option(help="File for the clients.")],
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
) -> None:
    """Sign a scenario, so that clients with it obey no other; scenario and --set of `server up`.

    Example: samara server keys sign field.toml --key operator.key --out field.signed
    """
    from samara.server.live.live_config import read_live_config
    from samara.server.live.scenario_signing import sign_scenario

    config = read_live_config(scenario, settings or [], "server keys sign")
    signed = sign_scenario(config, key, out)
    print("\n".join([f"{out}: {signed.name}, for the clients", *signed.describe()]))


@app.command("list")
def list_keys(run: RunOption) -> None:
    """Show the keys of a run.

    Example: samara server keys list --run runs/field
    """
    from rich.console import Console
    from rich.table import Table

    from samara.server.live.keys import KEYS_FOLDER, ClientKeys

    table = Table("name", "client", "fingerprint", "created", "revoked")
    client_keys = ClientKeys(run / KEYS_FOLDER)
    for key in client_keys.read_all():
        table.add_row(
            key.name, str(key.client), key.fingerprint[:16], key.created, key.revoked or "-"
        )
    Console().print(table)
    for damage in client_keys.find_damage():
        print(damage)


def invite(
    name: Name,
    run: RunOption,
    address: Annotated[
        str, typer.Option(help="Address at which the device reaches the server, host:port.")
    ] = "",
    scenario: Annotated[
        Path | None, typer.Option(help="Signed scenario from `samara server keys sign`.")
    ] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=720, help="Time until it ends.")] = 24.0,
    authority: Annotated[
        Path | None, typer.Option("--ca", help="As of `server up`; default the run's own.")
    ] = None,
    qr: Annotated[bool, typer.Option("--qr", help="Also print the line as a QR code.")] = False,
    program: Annotated[
        Path | None, typer.Option(help="Program for a phone, from `samara phone export`.")
    ] = None,
    gateway: Annotated[
        str, typer.Option(help="Address at which the device reaches its gateway, host:port.")
    ] = "",
    gateway_authority: Annotated[
        Path | None, typer.Option("--gateway-ca", help="Certificate that verifies the gateway's.")
    ] = None,
    page: Annotated[
        str, typer.Option(help="For a phone's browser: where the gateway's page is, https://...")
    ] = "",
    revoke: Annotated[
        bool, typer.Option("--revoke", help="End the invitation of this name instead.")
    ] = False,
) -> None:
    """Print the one line with which a device joins a run; its private key never leaves it.

    A phone, which has a gateway, also gets its program; a board with a gateway attaches to it. With
    --page the line is a link for a phone's browser, and a QR code of it.

    Example: samara server invite kitchen-orin --run runs/field --scenario field.signed
    """
    from datetime import UTC, datetime, timedelta

    from samara.server.live.certificates import server_address
    from samara.server.live.invitations import (
        board_welcome,
        invite_client,
        phone_welcome,
        revoke_invitation,
    )
    from samara.server.live.run_supervisor import FLOWER_FOLDER
    from samara.server.live.server_port import read_port
    from samara.shared.addresses import parse_address, parse_origin
    from samara.shared.certificates import CERTIFICATES_FOLDER
    from samara.shared.errors import ConfigError

    if revoke:
        revoke_invitation(run, name)
        print(f"{name} can no longer join by its invitation")
        return
    if page and (program or gateway or gateway_authority):
        raise ConfigError(
            "a browser gets program and stream from the gateway of --page; leave --program, "
            "--gateway and --gateway-ca out"
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
            "a phone is invited with all of --program, --gateway and --gateway-ca, a board that "
            "attaches to a gateway with the last two"
        )
    end = datetime.now(UTC) + timedelta(hours=hours)
    code = invite_client(run, name, authority, scenario, end, phone, board)
    command = f"phone join {address} {code}" if phone else f"client join {address} {code}"
    line = f"{origin}/#join={code}" if page else f"samara {command} --name {name}"
    print(line)
    typer.echo(f"for {name} alone, once, until {end:%Y-%m-%d %H:%M} UTC", err=True)
    if qr or page:
        import segno

        segno.make(line, error="l").terminal(compact=True)
