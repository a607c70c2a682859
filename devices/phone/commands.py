"""The commands `samara phone`: programs, and the reference phone."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samara.devices.live.owner.commands import Home, Name
from samara.shared.command_group import command_group

if TYPE_CHECKING:
    from samara.shared.settings.setting import Scalar

app = command_group("Export programs for phones and run the reference phone.")


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
    """The backend for the float part of a program."""

    XNNPACK = "xnnpack"
    PORTABLE = "portable"


class Form(StrEnum):
    """The form of a program: pure functions, or the stateful module of the P-RGE paper."""

    FUNCTIONAL = "functional"
    ALGORITHM_1 = "algorithm-1"


@app.callback()
def phone() -> None:
    """Export programs for phones and run the reference phone."""


@app.command()
def export(
    batch: Annotated[int, typer.Option(min=1, help="Examples per call, B.")],
    seq: Annotated[int, typer.Option(min=2, help="Tokens of the longest example, S.")],
    out: Annotated[Path, typer.Option(help="Program file; the manifest is written beside it.")],
    queries: Annotated[
        int, typer.Option(min=1, help="Directions per call, q; not used for a readout.")
    ] = 8,
    model: Annotated[str, typer.Option(help="Model folder, or name on the hub.")] = "embedded",
    task: Annotated[str, typer.Option(help="Shipped task, or a task file.")] = "messages",
    runtime: Annotated[
        Runtime, typer.Option(help="executorch, or onnx for browsers.")
    ] = Runtime.EXECUTORCH,
    quantization: Annotated[
        Quantization, typer.Option(help="8da4w needs executorch; float16 and int4 need onnx.")
    ] = Quantization.NONE,
    delegate: Annotated[
        Delegate, typer.Option(help="Backend; with --runtime executorch only.")
    ] = Delegate.XNNPACK,
    form: Annotated[
        Form, typer.Option(help="Form of the program; algorithm-1 cannot join a run.")
    ] = Form.FUNCTIONAL,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum tokens of a candidate in a choice task.")
    ] = 16,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the adapter, key=value.")
    ] = None,
) -> None:
    """Export a model with its adapter as a program for ExecuTorch or ONNX Runtime.

    Example: samara phone export --model MODEL --task sst2 --batch 4 --seq 64 --out model.pte
    """
    from samara.devices.phone.export import KINDS, ProgramShapes, export_program, prepare_model
    from samara.devices.phone.extra import require_executorch, require_onnx
    from samara.devices.phone.manifest import MANIFEST_KIND, manifest_file
    from samara.shared.machine.process import silence_libraries
    from samara.shared.settings.config import RunConfig
    from samara.shared.settings.setting import parse_assignment
    from samara.shared.storage.files import check_requested

    silence_libraries()
    is_onnx = runtime is Runtime.ONNX
    check_requested(out, KINDS[runtime.value])
    check_requested(manifest_file(out), MANIFEST_KIND)
    (require_onnx if is_onnx else require_executorch)()
    print(f"{model}: the export to a program takes some minutes", file=sys.stderr)
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
    out: Annotated[Path, typer.Option(help="Output file, JSON lines of token ids.")],
    model: Annotated[
        str, typer.Option(help="Model from which the program was exported.")
    ] = "embedded",
    data: Annotated[str, typer.Option(help="File, folder, or name on the hub.")] = "messages",
    task: Annotated[
        str, typer.Option(help="Task for which the program was exported.")
    ] = "messages",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the data, key=value.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Client index among data.clients; default: all data.")
    ] = None,
) -> None:
    """Tokenize examples for the reference phone, as an app does for its own texts.

    Example: samara phone rows --program model.pte --data DATA --task sst2 --out rows.jsonl
    """
    from samara.devices.phone.tokenization import write_examples
    from samara.shared.settings.config import RunConfig
    from samara.shared.settings.setting import parse_assignment

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
        typer.Option(min=0, help="Client index to keep, if the phone had a key before."),
    ] = None,
) -> None:
    """Create a phone's key and print its public half, for the gateway and the server.

    Example: samara phone key phone.key > phone.pem
    """
    from samara.devices.live.keys import create_key
    from samara.shared.protocol.signing import SigningKey

    create_key(out, client)
    sys.stdout.write(SigningKey(out).public.decode())


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="Address of the server, host:port.")],
    code: Annotated[str, typer.Argument(help="Code of the invitation.")],
    name: Name,
    home: Home = None,
) -> None:
    """Join a run with the line printed by `samara server invite`; needed once.

    Example: samara phone join example.org:8000 CODE --name pocket
    """
    from samara.devices.live.client_folder import client_folder
    from samara.devices.phone.reference_client.joining import join_run
    from samara.shared.network.invitation import InvitationCode

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
        Path | None,
        typer.Option(help="Program from `samara phone export`; default: the joined run's."),
    ] = None,
    gateway: Annotated[
        str, typer.Option(help="Gateway, host:port; default: the joined run's.")
    ] = "",
    key: Annotated[
        Path | None,
        typer.Option(help="Key from `samara phone key`; default: the key of the joined run."),
    ] = None,
    certs: Annotated[Path | None, typer.Option(help="CA certificate of the gateway.")] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Scenario that the operator has signed.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use plain text.")] = False,
    scalar_limit: Annotated[
        float, typer.Option(min=0, help="Maximum scalars sent, per trained number; 0: no limit.")
    ] = 0.0,
    least_batch: Annotated[
        int, typer.Option(min=1, help="Minimum examples that a step may use; 1: no limit.")
    ] = 2,
    scalars_per_example: Annotated[
        float,
        typer.Option(min=0, help="Maximum scalars per round and example of a step; 0: no limit."),
    ] = 0.0,
    epsilon_limit: Annotated[
        float, typer.Option(min=0, help="Maximum total ε of all reports; 0: no limit.")
    ] = 0.0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="personal.when=… or personal.retrain=…, instead of the run's values."
        ),
    ] = None,
) -> None:
    """Run the reference phone: check the program, attach, and answer until Ctrl-C or SIGTERM.

    Example: samara phone up --name pocket --rows rows.jsonl
    """
    from samara.client.limits.answer_limits import AnswerLimits
    from samara.devices.live.client_folder import client_folder
    from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
    from samara.devices.phone.reference_client.joining import read_joined_gateway
    from samara.devices.phone.reference_client.phone_process import up as run
    from samara.shared.errors import ConfigError
    from samara.shared.machine.process import log_to_stderr
    from samara.shared.network.addresses import parse_address

    folder = client_folder(name, home)
    owners = _read_owners_settings(settings or [])
    log_to_stderr()
    limits = AnswerLimits(scalar_limit, least_batch, scalars_per_example, epsilon_limit)
    if joined := read_joined_gateway(folder):
        program = program or joined.program
        key = key or joined.key
        if not gateway:
            gateway = joined.gateway
            certs = certs or joined.authority
    if not (program and key and gateway):
        raise ConfigError(
            "give --program, --key and --gateway, or join a run first, with the line that "
            "`samara server invite` prints on the server for a phone"
        )
    parse_address(gateway, "--gateway")
    endpoint = GatewayEndpoint(gateway, certs, insecure)
    run(program, rows, key, folder, endpoint, limits, owners, scenario)


def _read_owners_settings(assignments: list[str]) -> "dict[str, Scalar]":
    """Return the owner's ``--set`` settings by dotted key; they override a run's settings.

    Raises:
        ConfigError: if a setting is invalid, or the owner of a phone cannot set it.
    """
    from samara.shared.errors import ConfigError
    from samara.shared.settings.config import RunConfig
    from samara.shared.settings.setting import describe, parse_assignment

    given = dict(map(parse_assignment, assignments))
    theirs = [key for key, about in describe(RunConfig).items() if about.owner == "either"]
    RunConfig.given(given, "phone up")
    if others := given.keys() - set(theirs):
        raise ConfigError(
            f"phone up: the owner of a phone cannot set {', '.join(sorted(others))}; --set accepts "
            f"only {' and '.join(theirs)}"
        )
    return given
