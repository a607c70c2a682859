"""The commands that serve, show and verify runs."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.config import RunConfig

app = typer.Typer(no_args_is_help=True)
keys = typer.Typer(help="The keys of the clients that may join a run.", no_args_is_help=True)
app.add_typer(keys, name="keys")
Run = Annotated[Path | None, typer.Argument(help="Folder of a run.")]
RunToo = Annotated[Path | None, typer.Option("--run", help="The same as RUN.")]
RunOption = Annotated[Path, typer.Option("--run", help="Folder of a run.")]
Name = Annotated[str, typer.Argument(help="Name of the client.")]


@app.callback()
def server() -> None:
    """Serve runs, show and verify them."""
    os.umask(0o077)  # a run's files are for its owner, also those of Flower's processes


@app.command()
def up(
    run: Annotated[Path, typer.Option("--run", help="Folder of the run and of all its files.")],
    scenario: Annotated[Path | None, typer.Argument(help="Scenario file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65_535)] = 8000,
    certificate: Annotated[
        Path | None, typer.Option("--cert", help="Certificate, PEM; by default the run makes one.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Private key of --cert, PEM.")] = None,
    authority: Annotated[
        Path | None, typer.Option("--ca", help="PEM that verifies --cert; default --cert.")
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name or address of this server, for the run's certificate."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no client keys: any client may join.")
    ] = False,
) -> None:
    """Serve a run to clients until it is finished; the same command resumes it after a crash.

    Example: samara server up --run runs/field field.toml --name server.example
    """
    from rich.console import Console

    from server.live.certificates import check_certificates
    from server.live.keys import KEYS_FOLDER, ClientKeys
    from server.live.run_display import RunDisplay
    from server.live.run_supervisor import FLOWER_FOLDER, serve_run
    from server.live.superlink import max_reply_bytes
    from server.live.superlink_process import SuperLinkProcess
    from shared.certificates import CERTIFICATES_FOLDER, certificate_end, make_certificates
    from shared.files import make_private_folder

    run = run.resolve()
    config = _read_config(scenario, [*(settings or []), f"out={run}"], "server up")
    make_private_folder(run)
    console = Console()
    renewal = None
    if insecure:
        tls = None
    elif certificate:
        tls = check_certificates(certificate, key, authority)
    else:
        renewal = partial(make_certificates, run / CERTIFICATES_FOLDER, names or [])
        tls = renewal()
    keys_folder = run / KEYS_FOLDER if tls else None
    client_keys = ClientKeys(keys_folder) if keys_folder else None
    max_bytes = 2 * max_reply_bytes(config)  # a frame, and Flower's message around it
    superlink = SuperLinkProcess(run / FLOWER_FOLDER, host, port, tls, max_bytes, keys_folder)
    with RunDisplay(run, console) as display:
        if tls:
            display.show(f"clients verify this server with {tls.authority}")
            display.show(f"its certificate ends on {certificate_end(tls.certificate):%Y-%m-%d}")
        is_finished = serve_run(config, superlink, client_keys, display, renewal)
    end = "finished" if is_finished else "stopped; the same command resumes it"
    console.print(f"{run}: {end}", soft_wrap=True)


@keys.command()
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
    from server.live.keys import KEYS_FOLDER, ClientKeys

    file = ClientKeys(run / KEYS_FOLDER).create(name, gateway)
    print(
        f"{file}: copy it to the {'gateway' if gateway else 'client'} {name}, then delete it here"
    )


@keys.command()
def add(
    name: Name, public: Annotated[Path, typer.Argument(help="Public key, PEM.")], run: RunOption
) -> None:
    """Register the key of a client that made it itself, such as a phone; also during a run.

    Example: samara server keys add one phones/one.pem --run runs/field
    """
    from server.live.keys import KEYS_FOLDER, ClientKeys

    print(f"{name}: may join as client {ClientKeys(run / KEYS_FOLDER).add(name, public).client}")


@keys.command()
def revoke(name: Name, run: RunOption) -> None:
    """Revoke the key of a client, also while a run is running.

    Example: samara server keys revoke kitchen-orin --run runs/field
    """
    from server.live.keys import KEYS_FOLDER, ClientKeys

    print(f"{name}: revoked on {ClientKeys(run / KEYS_FOLDER).revoke(name).revoked}")


@keys.command()
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
    from server.live.keys import KEYS_FOLDER, ClientKeys

    keys = ClientKeys(run / KEYS_FOLDER)
    if public:
        client = keys.rotate_to(name, public).client
        print(f"{name}: stays client {client} with the key in {public}; a gateway needs it too")
        return
    file = keys.rotate(name)
    print(f"{file}: copy it to {name} in place of its earlier key, then delete it here")


@keys.command()
def renew(run: RunOption) -> None:
    """Give the server a new key and certificate; clients go on with the authority they have.

    Example: samara server keys renew --run runs/field
    """
    from shared.certificates import CERTIFICATES_FOLDER, certificate_end, renew_certificate

    file = renew_certificate(run / CERTIFICATES_FOLDER).certificate
    print(f"{file}: valid until {certificate_end(file):%Y-%m-%d}; a running server takes it up")


@keys.command()
def operator(
    file: Annotated[Path, typer.Argument(help="File of the private key, on your own machine.")],
) -> None:
    """Make the key with which you sign scenarios; the server does not need it.

    Example: samara server keys operator operator.key
    """
    from server.live.scenario_signing import create_operator_key

    print(f"{file}: key of operator {create_operator_key(file)}; keep it away from the server")


@keys.command()
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
    from server.live.scenario_signing import sign_scenario

    config = _read_config(scenario, settings or [], "server keys sign")
    signed = sign_scenario(config, key, out)
    print("\n".join([f"{out}: {signed.name}, for the clients", *signed.describe()]))


@keys.command("list")
def list_keys(run: RunOption) -> None:
    """Show the keys of a run.

    Example: samara server keys list --run runs/field
    """
    from rich.console import Console
    from rich.table import Table

    from server.live.keys import KEYS_FOLDER, ClientKeys

    table = Table("name", "client", "fingerprint", "created", "revoked")
    client_keys = ClientKeys(run / KEYS_FOLDER)
    for key in client_keys.read_all():
        table.add_row(
            key.name, str(key.client), key.fingerprint[:16], key.created, key.revoked or "-"
        )
    Console().print(table)
    for damage in client_keys.find_damage():
        print(damage)


@app.command()
def status(
    run: Run = None,
    run_too: RunToo = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the rounds here, for TensorBoard.")
    ] = None,
) -> None:
    """Show the last round of a run and of its clients, also while it is running.

    Example: samara server status --run runs/field
    """
    from rich.console import Console

    from server.live.status import read_status
    from server.live.status_table import make_status_table

    run_status = read_status(run := _the_run(run, run_too))
    console = Console()
    console.print(make_status_table(run_status))
    for number, client in run_status.clients.items():
        if client.last_failure:
            name = f" ({client.name})" if client.name else ""
            console.print(f"client {number}{name}, {client.last_failure}", markup=False)
    if tensorboard:
        from server.round_curves import write_curves

        if write_curves(run, tensorboard):
            console.print(f"tensorboard --logdir {tensorboard}")
        else:
            console.print("no curves yet: no figure has two points")


@app.command()
def inspect(run: Run = None, run_too: RunToo = None) -> None:
    """Show the rounds of a run, also while it is running, and the files that hold them.

    Example: samara server inspect runs/first
    """
    from rich.console import Console
    from rich.table import Table

    from server.store import ledger_of, read_layout
    from shared.ledger.reading import read_header, read_ledger, segment_paths, snapshot_paths

    run = _the_run(run, run_too)
    layout, ledger = read_layout(run), ledger_of(run)
    header = read_header(ledger)
    rounds = Table(title=f"Run {header.run_id.hex()}, d = {layout.size:,}, track {header.track}")
    for column in ("round", "clients", "examples", "scalars", "shift", "bytes", "end digest"):
        rounds.add_column(column, justify="right")
    for record in read_ledger(ledger):
        delta = record.delta
        rounds.add_row(
            str(delta.round),
            str(len(delta.contributors)),
            str(sum(contributor.examples for contributor in delta.contributors)),
            str(sum(len(group.scalars.coefficients) for group in delta.groups)),
            ",".join(str(s) for s in sorted({group.scalars.shift for group in delta.groups})),
            f"{record.size:,}",
            record.end_digest.hex()[:16],
        )
    files = Table("file", "holds", "bytes", title=str(ledger))
    contents = [(path, f"the rounds from {n} on") for n, path in segment_paths(ledger).items()]
    contents += [(path, f"the state after round {n}") for n, path in snapshot_paths(ledger).items()]
    for path, content in sorted(contents):
        with suppress(FileNotFoundError):  # compacted away in the meantime
            files.add_row(path.name, content, f"{path.stat().st_size:,}")
    Console().print(rounds, files)


@app.command()
def verify(run: Run = None, run_too: RunToo = None) -> None:
    """Replay a run from as far back as its ledger goes and prove every digest and snapshot.

    Example: samara server verify runs/first
    """
    from rich.console import Console

    from server.store import cluster_folders, read_layout, replay_run
    from shared.errors import LedgerError
    from shared.ledger.verification import verify_ledger
    from shared.replay import digest
    from shared.result import RESULT_FILE, read_result

    run = _the_run(run, run_too)
    if clusters := cluster_folders(run):
        for cluster in clusters:
            verify(cluster)
        return
    layout = read_layout(run)
    steps = replay_run(run)
    first = step = next(steps)
    scalars = 0
    for step in steps:
        groups = step.record.delta.groups if step.record else ()
        scalars += sum(len(group.scalars.coefficients) for group in groups)
    end = digest(layout.hash, step.state).hex()
    if (run / RESULT_FILE).exists():
        result = read_result(run)
        expected = result.get("final_round"), result.get("final_digest")
        if expected != (step.round, end):
            raise LedgerError(
                f"{run / RESULT_FILE}: ends with round {expected[0]} and digest "
                f"{str(expected[1])[:16]}, but the ledger with round {step.round} and "
                f"{end[:16]}; rounds are missing or belong to another run"
            )
    before = f"rounds 1 to {first.round} are in a snapshot; " if first.round else ""
    Console().print(
        f"{before}{step.round - first.round} rounds, {scalars} scalars, every digest reproduced; "
        f"ends in {end}",
        soft_wrap=True,
    )
    personal = sorted(run.glob("clients/*/personal.ledger"))
    for ledger in personal:
        for _ in verify_ledger(ledger, layout):
            pass
    if personal:
        Console().print(f"personal ledgers of {len(personal)} clients: every digest reproduced")


def _the_run(argument: Path | None, option: Path | None) -> Path:
    """Return the folder that was given in one of two ways.

    Raises:
        ConfigError: if it was given in none, or in both.
    """
    from shared.errors import ConfigError

    given = [folder for folder in (argument, option) if folder is not None]
    if len(given) != 1:
        raise ConfigError("name the folder of a run once, such as samara server inspect runs/first")
    return given[0]


def _read_config(scenario: Path | None, assignments: list[str], command: str) -> "RunConfig":
    """Read the settings of a live run, in which every client has its own data; store its files."""
    from shared.blob_store import BlobStore
    from shared.blobs import publish_blobs
    from shared.config import RunConfig, load_scenario
    from shared.errors import ConfigError
    from shared.features import check_features
    from shared.settings import parse_assignment

    if scenario is not None:
        config = load_scenario(scenario, assignments)
    else:
        config = RunConfig.of(dict(map(parse_assignment, assignments)), "--set")
    if config.evaluate.limit:
        raise ConfigError("evaluate.limit is for simulated clients; leave it out of a live run")
    cohort = config.cohort
    config = config.among(max(config.data.clients, cohort.available, cohort.minimum))
    config = publish_blobs(config, BlobStore())
    check_features({"engine": "flower", "clients": "board"} | config.features, command)
    return config
