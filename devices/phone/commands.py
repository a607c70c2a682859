"""The commands about phones: make a program, run the reference phone, let phones attach."""

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Programs for phones, and a phone to try them with.", no_args_is_help=True)
gateway = typer.Typer(help="Let phones take part in a run.", no_args_is_help=True)


class Quantization(StrEnum):
    """Of the weights in the blocks."""

    NONE = "none"
    INT8 = "int8"
    FOUR_BIT = "8da4w"


class Delegate(StrEnum):
    """What runs the float part."""

    XNNPACK = "xnnpack"
    PORTABLE = "portable"


class Form(StrEnum):
    """What the program keeps between calls: nothing, or the paper's perturbed adapters."""

    FUNCTIONAL = "functional"
    ALGORITHM_1 = "algorithm-1"


@app.callback()
def phone() -> None:
    """Programs for phones, and a phone to try them with."""


@app.command()
def export(
    queries: Annotated[int, typer.Option(min=1, help="Directions of a call, q.")],
    batch: Annotated[int, typer.Option(min=1, help="Rows of a call, B.")],
    seq: Annotated[int, typer.Option(min=2, help="Tokens of a row, S.")],
    out: Annotated[Path, typer.Option(help="Program; its manifest goes beside it.")],
    model: Annotated[str, typer.Option(help="Folder, or name on the hub.")] = "embedded",
    task: Annotated[str, typer.Option(help="Shipped task, or a task file.")] = "messages",
    quantization: Annotated[Quantization, typer.Option()] = Quantization.NONE,
    delegate: Annotated[Delegate, typer.Option()] = Delegate.XNNPACK,
    form: Annotated[Form, typer.Option(help="algorithm-1 joins no run.")] = Form.FUNCTIONAL,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Of the adapter: key=value.")
    ] = None,
) -> None:
    """Export a model with its adapter as a program for the ExecuTorch runtime.

    Example: samara phone export --model MODEL --task sst2 --queries 4 --batch 4 --seq 64
    --out model.pte
    """
    from devices.phone.export import ProgramShapes, export_program, prepare_model
    from devices.phone.extra import require_executorch
    from shared.config import RunConfig
    from shared.machine import silence_libraries
    from shared.settings import parse_assignment

    silence_libraries()
    require_executorch()
    flat = {"model.path": model, "task": task} | dict(map(parse_assignment, settings or []))
    config = RunConfig.of(flat, "phone export")
    ready = prepare_model(model, task, config.adapter, quantization.value)
    shapes = ProgramShapes(queries, batch, seq)
    manifest = export_program(ready, shapes, quantization.value, delegate.value, out, form.value)
    print(
        f"{out}: {out.stat().st_size / 2**20:.1f} MiB, d = {ready.layout.size}, "
        f"layout {manifest.layout_hash[:12]}"
    )


@app.command()
def rows(
    program: Annotated[Path, typer.Option(help="From `samara phone export`.")],
    out: Annotated[Path, typer.Option(help="JSONL of token ids.")],
    model: Annotated[str, typer.Option(help="The program's model.")] = "embedded",
    data: Annotated[str, typer.Option(help="File, folder, or name on the hub.")] = "messages",
    task: Annotated[str, typer.Option(help="The program's task.")] = "messages",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Of the data: key=value.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Whose share, with data.clients; default all.")
    ] = None,
) -> None:
    """Tokenize examples for the reference phone, as an app does with its own.

    Example: samara phone rows --program model.pte --data DATA --task sst2 --out rows.jsonl
    """
    from devices.phone.tokenization import write_examples
    from shared.config import RunConfig
    from shared.settings import parse_assignment

    flat = {"model.path": model, "data.path": data, "task": task, "data.clients": 1}
    flat |= dict(map(parse_assignment, settings or []))
    count = write_examples(RunConfig.of(flat, "phone rows"), program, client, out)
    print(f"{out}: {count} rows")


@app.command()
def check(program: Annotated[Path, typer.Argument(help="From `samara phone export`.")]) -> None:
    """Run a program's self-check on this machine.

    Example: samara phone check model.pte
    """
    from devices.phone.reference_client.runtime import PhoneProgram

    worst = PhoneProgram(program).check()
    print(f"{program}: replay is exact; losses differ by at most {worst:.2g} nats")


@app.command()
def key(out: Annotated[Path, typer.Argument(help="File of the private key.")]) -> None:
    """Make a phone's key and print the public half, which the gateway and the server must know.

    Example: samara phone key phone.key > phone.pem
    """
    from devices.live.keys import create_key
    from shared.signing import PhoneKey

    create_key(out)
    sys.stdout.write(PhoneKey(out).public.decode())


@app.command()
def up(
    program: Annotated[Path, typer.Option(help="From `samara phone export`.")],
    rows: Annotated[Path, typer.Option(help="Tokenized examples, JSONL.")],
    gateway: Annotated[str, typer.Option(help="host:port.")],
    key: Annotated[Path, typer.Option(help="From `samara phone key`.")],
    home: Annotated[Path, typer.Option(help="Folder of its state.")],
    certs: Annotated[Path | None, typer.Option(help="CA certificate of the gateway.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text.")] = False,
) -> None:
    """Run the reference phone: check the program, attach, and answer until told to end.

    Example: samara phone up --program model.pte --rows rows.jsonl --gateway example.org:9100
    --key phone.key --home phone --certs ca.pem
    """
    from devices.phone.reference_client.gateway_endpoint import GatewayEndpoint
    from devices.phone.reference_client.phone_process import up as run

    _say()
    run(program, rows, key, home, GatewayEndpoint(gateway, certs, insecure))


@gateway.callback()
def gateway_() -> None:
    """Let phones take part in a run."""


@gateway.command(name="up")
def gateway_up(
    superlink: Annotated[str, typer.Option(help="Of the server, host:port.")],
    phones: Annotated[Path, typer.Option(help="Folder of the public keys (*.pem) to admit.")],
    listen: Annotated[str, typer.Option(help="Where phones attach, host:port.")] = "0.0.0.0:9100",
    cert: Annotated[
        Path | None, typer.Option(help="For phones, PEM; without one it makes its own.")
    ] = None,
    cert_key: Annotated[Path | None, typer.Option(help="PEM, of --cert.")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name or address that phones use, for the own certificate."),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="From `samara server keys create`.")] = None,
    certs: Annotated[Path | None, typer.Option(help="CA certificate of the server.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text, no key.")] = False,
    trust: Annotated[
        list[str] | None, typer.Option(help="SHA-256 of another app to accept.")
    ] = None,
    home: Annotated[Path | None, typer.Option(help="Default ~/.samara/gateway.")] = None,
) -> None:
    """Let phones attach, and pass on what the server asks of them.

    Example: samara gateway up --superlink example.org:8000 --key gateway.key --certs ca.pem
    --phones phones --name gateway.example
    """
    from devices.live.settings import parse_address
    from devices.phone.gateway_process import GatewaySettings
    from devices.phone.gateway_process import up as serve
    from shared.errors import ConfigError

    parse_address(superlink)
    if not insecure and key is None:
        raise ConfigError(
            "--key FILE is missing; the server's `samara server keys create` makes it"
        )
    _say()
    serve(
        GatewaySettings(
            (home or Path.home() / ".samara" / "gateway").expanduser().absolute(),
            phones.absolute(),
            listen,
            cert,
            cert_key,
            tuple(names or ()),
            superlink,
            key.expanduser().absolute() if key else None,
            certs.expanduser().absolute() if certs else None,
            insecure,
            tuple(trust or ()),
        )
    )


def _say() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it says is said again in our words
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("samara").setLevel(logging.INFO)
