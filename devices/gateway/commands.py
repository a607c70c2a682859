"""The command `samara gateway`."""

from pathlib import Path
from typing import Annotated

import typer

from samara.shared.command_group import command_group

app = command_group("Let phones take part in a run.")


@app.callback()
def gateway() -> None:
    """Let phones take part in a run."""


@app.command()
def up(
    superlink: Annotated[str, typer.Option(help="Address of the server, host:port.")],
    phones: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the keys (*.pem) to admit; default: keys registered at the server."
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address to which phones attach, host:port.")
    ] = "0.0.0.0:9100",
    cert: Annotated[
        Path | None,
        typer.Option(help="Certificate for phones, PEM; default: a created certificate."),
    ] = None,
    cert_key: Annotated[Path | None, typer.Option(help="Private key of --cert, PEM.")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Host name or address for the created certificate."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Key file from `samara server keys create`.")
    ] = None,
    certs: Annotated[Path | None, typer.Option(help="CA certificate of the server.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use plain text and no key.")
    ] = False,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the gateway; default ~/.samara/gateway.")
    ] = None,
    web: Annotated[
        str, typer.Option(help="Also serve the page for browsers at host:port; needs --cert.")
    ] = "",
    program: Annotated[
        Path | None, typer.Option(help="Program for browsers, exported with --runtime onnx.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Folder of the page; default: the built or installed page.")
    ] = None,
    web_origin: Annotated[
        str, typer.Option(help="Origin of the page behind a reverse proxy, https://...")
    ] = "",
) -> None:
    """Let phones attach, and pass the server's requests on to them.

    Example: samara gateway up --superlink example.org:8000 --key gateway.key --certs ca.pem
    --name gateway.example
    """
    from samara.devices.gateway.page_server.settings import PageSettings
    from samara.devices.gateway.process import up as serve
    from samara.devices.gateway.settings import GatewaySettings
    from samara.devices.live.client_folder import client_folder
    from samara.shared.errors import ConfigError
    from samara.shared.machine.process import log_to_stderr
    from samara.shared.network.addresses import parse_address, parse_origin

    parse_address(superlink)
    web_origin = parse_origin(web_origin, "--web-origin") if web_origin else ""
    if not insecure and key is None:
        raise ConfigError(
            "--key FILE is missing; create one with `samara server keys create` on the server"
        )
    if insecure and phones is None:
        raise ConfigError(
            "--phones FOLDER is missing; with --insecure, the server knows no keys, "
            "so give a folder of the phones' keys"
        )
    if bool(web) != bool(program) or (not web and (page or web_origin)):
        raise ConfigError(
            "--web and --program: serving browsers needs both options, also for "
            "--page and --web-origin"
        )
    log_to_stderr()
    serve(
        GatewaySettings(
            folder=client_folder("gateway", home),
            phones=phones.absolute() if phones else None,
            listen=listen,
            certificate=cert,
            certificate_key=cert_key,
            names=tuple(names or ()),
            superlink=superlink,
            key=key.expanduser().absolute() if key else None,
            certificates=certs.expanduser().absolute() if certs else None,
            insecure=insecure,
            web=PageSettings(web, program, page, web_origin, cert is not None) if program else None,
        )
    )
