"""The commands `samara phone` and `samara gateway`: programs, the reference phone, the gateway."""

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samara.devices.live.owner_commands import Home, Name
from samara.shared.command_group import command_group

if TYPE_CHECKING:
    from samara.shared.settings import Scalar

app = command_group("Export programs for phones and run the reference phone.")
gateway = command_group("Let phones take part in a run.")


class Quantization(StrEnum):
    """The quantization of the weights in the blocks."""

    NONE = "none"
    FLOAT16 = "float16"
    INT8 = "int8"
    FOUR_BIT = "8da4w"
    FOUR_BIT_WEIGHTS = "int4"


class Runtime(StrEnum):
    """The runtime of a program: ExecuTorch in an app, ONNX Runtime also in a browser."""

    EXECUTORCH = "executorch"
    ONNX = "onnx"


class Delegate(StrEnum):
    """The backend of the float part of a program."""

    XNNPACK = "xnnpack"
    PORTABLE = "portable"


class Form(StrEnum):
    """The form of a program: pure functions, or the paper's stateful module."""

    FUNCTIONAL = "functional"
    ALGORITHM_1 = "algorithm-1"


@app.callback()
def phone() -> None:
    """Export programs for phones and run the reference phone."""


@app.command()
def export(
    batch: Annotated[int, typer.Option(min=1, help="Examples of a call, B.")],
    seq: Annotated[int, typer.Option(min=2, help="Tokens of the longest example, S.")],
    out: Annotated[Path, typer.Option(help="Program file; the manifest is written beside it.")],
    queries: Annotated[
        int, typer.Option(min=1, help="Directions of a call, q; a readout's calls take none.")
    ] = 8,
    model: Annotated[str, typer.Option(help="Folder, or name on the hub.")] = "embedded",
    task: Annotated[str, typer.Option(help="Shipped task, or a task file.")] = "messages",
    runtime: Annotated[Runtime, typer.Option(help="onnx: for browsers.")] = Runtime.EXECUTORCH,
    quantization: Annotated[
        Quantization, typer.Option(help="8da4w: executorch; float16, int4: onnx.")
    ] = Quantization.NONE,
    delegate: Annotated[Delegate, typer.Option(help="Of --runtime executorch.")] = Delegate.XNNPACK,
    form: Annotated[Form, typer.Option(help="algorithm-1 cannot join a run.")] = Form.FUNCTIONAL,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of a candidate of a choice task.")
    ] = 16,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Adapter setting, key=value.")
    ] = None,
) -> None:
    """Export a model with its adapter as a program for ExecuTorch or ONNX Runtime.

    Example: samara phone export --model MODEL --task sst2 --batch 4 --seq 64 --out model.pte
    """
    from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
    from samara.devices.phone.extra import require_executorch, require_onnx
    from samara.shared.config import RunConfig
    from samara.shared.machine import silence_libraries
    from samara.shared.settings import parse_assignment

    silence_libraries()
    is_onnx = runtime is Runtime.ONNX
    (require_onnx if is_onnx else require_executorch)()
    print(f"{model}: making a program of it, which takes some minutes", file=sys.stderr)
    flat = {"model.path": model, "task": task} | dict(map(parse_assignment, settings or []))
    config = RunConfig.given(flat, "phone export")
    ready = prepare_model(config, quantization.value, answer_tokens)
    shapes = ProgramShapes(queries, batch, seq)
    manifest = export_program(
        *(ready, shapes, quantization.value, "none" if is_onnx else delegate.value, out),
        form=form.value,
        runtime=runtime.value,
    )
    print(
        f"{out}: {out.stat().st_size / 2**20:.1f} MiB, adapter.layers = {config.adapter.layers}, "
        f"d = {ready.layout.size}, layout {manifest.layout_hash[:12]}"
    )


@app.command()
def rows(
    program: Annotated[Path, typer.Option(help="Program from `samara phone export`.")],
    out: Annotated[Path, typer.Option(help="JSONL of token ids.")],
    model: Annotated[str, typer.Option(help="The program's model.")] = "embedded",
    data: Annotated[str, typer.Option(help="File, folder, or name on the hub.")] = "messages",
    task: Annotated[str, typer.Option(help="The program's task.")] = "messages",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Data setting, key=value.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Client index out of data.clients; default: all data.")
    ] = None,
) -> None:
    """Tokenize examples for the reference phone, as an app does with its own texts.

    Example: samara phone rows --program model.pte --data DATA --task sst2 --out rows.jsonl
    """
    from samara.devices.phone.tokenization import write_examples
    from samara.shared.config import RunConfig
    from samara.shared.settings import parse_assignment

    flat = {"model.path": model, "data.path": data, "task": task, "data.clients": 1}
    flat |= dict(map(parse_assignment, settings or []))
    count = write_examples(RunConfig.given(flat, "phone rows"), program, client, out)
    print(f"{out}: {count} examples")


@app.command()
def check(
    program: Annotated[Path, typer.Argument(help="Program from `samara phone export`.")],
) -> None:
    """Run a program's self-check on this machine.

    Example: samara phone check model.pte
    """
    from samara.devices.phone.reference_client.readout_program import load_program

    worst = load_program(program).check()
    print(f"{program}: replay is exact; losses differ by at most {worst:.2g} nats")


@app.command()
def key(
    out: Annotated[Path, typer.Argument(help="File of the private key.")],
    client: Annotated[
        int | None,
        typer.Option(min=0, help="Client index that the phone keeps, if it had a key before."),
    ] = None,
) -> None:
    """Create a phone's key and print its public half, for the gateway and the server.

    Example: samara phone key phone.key > phone.pem
    """
    from samara.devices.live.keys import create_key
    from samara.shared.signing import SigningKey

    create_key(out, client)
    sys.stdout.write(SigningKey(out).public.decode())


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="Address of the server, host:port.")],
    code: Annotated[str, typer.Argument(help="Code of the invitation.")],
    name: Name,
    home: Home = None,
) -> None:
    """Join a run by the line that `samara server invite` has printed; needed once.

    Example: samara phone join example.org:8000 CODE --name pocket
    """
    from samara.devices.live.client_folder import client_folder
    from samara.devices.phone.reference_client.joining import join_run
    from samara.shared.invitation import InvitationCode

    folder = client_folder(name, home)
    print("\n".join(join_run(address, InvitationCode.parse(code), folder)))
    at = f" --home {folder}" if home else ""
    print(f"next: samara phone up --name {name}{at} --rows ROWS")


@app.command()
def up(
    rows: Annotated[Path, typer.Option(help="Tokenized examples, JSONL.")],
    name: Name = "",
    home: Home = None,
    program: Annotated[
        Path | None, typer.Option(help="Program from `samara phone export`; default as joined.")
    ] = None,
    gateway: Annotated[str, typer.Option(help="host:port; default as joined.")] = "",
    key: Annotated[
        Path | None, typer.Option(help="Key from `samara phone key`; default as joined.")
    ] = None,
    certs: Annotated[Path | None, typer.Option(help="CA certificate of the gateway.")] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario that the operator has signed.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text.")] = False,
    scalar_limit: Annotated[
        float, typer.Option(min=0, help="Most scalars sent, per trained number; 0: no limit.")
    ] = 0.0,
    least_batch: Annotated[
        int, typer.Option(min=1, help="Fewest examples that a step may use; 1: no limit.")
    ] = 2,
    scalars_per_example: Annotated[
        float, typer.Option(min=0, help="Most scalars a round, per example of a step; 0: no limit.")
    ] = 0.0,
    epsilon_limit: Annotated[
        float, typer.Option(min=0, help="Largest ε of all reports together; 0: no limit.")
    ] = 0.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="personal.when or personal.retrain, in place of the run's."),
    ] = None,
) -> None:
    """Run the reference phone: check the program, attach, and answer until Ctrl-C or SIGTERM.

    Example: samara phone up --name pocket --rows rows.jsonl
    """
    from samara.client.protocol.answer_limits import AnswerLimits
    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.gateway_endpoint import GatewayEndpoint
    from samara.devices.phone.reference_client.joining import read_joined_gateway
    from samara.devices.phone.reference_client.phone_process import up as run
    from samara.shared.addresses import parse_address
    from samara.shared.errors import ConfigError

    folder, owners = client_folder(name, home), _read_owners_settings(settings or [])
    _configure_logging()
    limits = AnswerLimits(scalar_limit, least_batch, scalars_per_example, epsilon_limit)
    if joined := read_joined_gateway(folder):
        program, key = program or joined.program, key or joined.key
        if not gateway:
            gateway, certs = joined.gateway, certs or joined.authority
    if not (program and key and gateway):
        raise ConfigError(
            "--program, --key and --gateway are needed; or join first, with the line that "
            "`samara server invite` prints on the server for a phone"
        )
    parse_address(gateway, "--gateway")
    endpoint = GatewayEndpoint(gateway, certs, insecure)
    run(program, rows, key, folder, endpoint, limits, owners, scenario)


@gateway.callback()
def gateway_() -> None:
    """Let phones take part in a run."""


@gateway.command(name="up")
def gateway_up(
    superlink: Annotated[str, typer.Option(help="Address of the server, host:port.")],
    phones: Annotated[
        Path | None,
        typer.Option(help="Folder of the keys (*.pem) to admit; default: the server's clients."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address to which phones attach, host:port.")
    ] = "0.0.0.0:9100",
    cert: Annotated[
        Path | None, typer.Option(help="Certificate for phones, PEM; default: creates one.")
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
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text, no key.")] = False,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the gateway; default ~/.samara/gateway.")
    ] = None,
    web: Annotated[
        str, typer.Option(help="Also serve the page for browsers at host:port; needs --cert.")
    ] = "",
    program: Annotated[
        Path | None, typer.Option(help="Program for browsers, --runtime onnx.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Folder of the page; default: as built or installed.")
    ] = None,
    web_origin: Annotated[
        str, typer.Option(help="Where browsers find it behind a reverse proxy, https://...")
    ] = "",
) -> None:
    """Let phones attach, and pass the server's requests on to them.

    Example: samara gateway up --superlink example.org:8000 --key gateway.key --certs ca.pem
    --name gateway.example
    """
    from samara.devices.live.client_folder import client_folder
    from samara.devices.phone.gateway_process import up as serve
    from samara.devices.phone.gateway_settings import GatewaySettings
    from samara.devices.phone.page_server.settings import PageSettings
    from samara.shared.addresses import parse_address, parse_origin
    from samara.shared.errors import ConfigError

    parse_address(superlink)
    web_origin = parse_origin(web_origin, "--web-origin") if web_origin else ""
    if not insecure and key is None:
        raise ConfigError(
            "--key FILE is missing; create one with `samara server keys create` on the server"
        )
    if insecure and phones is None:
        raise ConfigError("--phones FOLDER is missing: with --insecure the server has no keys")
    if bool(web) != bool(program) or (not web and (page or web_origin)):
        raise ConfigError("browsers are served with both of --web and --program")
    _configure_logging()
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


def _read_owners_settings(assignments: list[str]) -> "dict[str, Scalar]":
    """Return the settings of ``--set`` that decide in place of a run's, by dotted key.

    Raises:
        ConfigError: if they are not valid, or not for the owner of a phone to decide.
    """
    from samara.shared.config import RunConfig
    from samara.shared.errors import ConfigError
    from samara.shared.settings import describe, parse_assignment

    given = dict(map(parse_assignment, assignments))
    theirs = [key for key, about in describe(RunConfig).items() if about.owner == "either"]
    RunConfig.given(given, "phone up")
    if others := given.keys() - set(theirs):
        raise ConfigError(
            f"phone up: {', '.join(sorted(others))}: not for the owner of a phone to decide; "
            f"--set has {' and '.join(theirs)}"
        )
    return given


def _configure_logging() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its errors are logged in our words
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("samara").setLevel(logging.INFO)
