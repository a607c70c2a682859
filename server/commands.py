"""The commands that serve, show and verify runs."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from samara.server import keeping_commands, key_commands
from samara.server.live.server_port import DEFAULT_DASHBOARD_PORT, DEFAULT_PORT
from samara.shared.command_group import command_group

app = command_group("Serve runs, show and verify them.")
app.add_typer(key_commands.app, name="keys")
app.command()(key_commands.invite)
for command in (keeping_commands.backup, keeping_commands.restore, keeping_commands.doctor):
    app.command()(command)
Run = Annotated[Path | None, typer.Argument(help="Folder of a run.")]
RunToo = Annotated[Path | None, typer.Option("--run", help="The same as RUN.")]


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
    port: Annotated[int, typer.Option(min=1, max=65_535)] = DEFAULT_PORT,
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
    has_dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Page and metrics of the run on this machine.")
    ] = False,
    dashboard_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the page; 0 takes a free one.")
    ] = DEFAULT_DASHBOARD_PORT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line in place of text.")
    ] = False,
) -> None:
    """Serve a run to clients until it is finished; the same command resumes it after a crash.

    Example: samara server up --run runs/field field.toml --name server.example
    """
    from contextlib import nullcontext

    from rich.console import Console

    from samara.server.live.certificates import check_certificates
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys
    from samara.server.live.live_config import read_live_config, write_scenario
    from samara.server.live.run_display import RunDisplay
    from samara.server.live.run_lock import check_not_moved
    from samara.server.live.run_supervisor import FLOWER_FOLDER, serve_run
    from samara.server.live.superlink import max_reply_bytes
    from samara.server.live.superlink_process import SuperLinkProcess
    from samara.server.watch.dashboard import Dashboard
    from samara.shared.certificates import CERTIFICATES_FOLDER, certificate_end, make_certificates
    from samara.shared.files import make_private_folder
    from samara.shared.run_settings import check_settings

    run = run.resolve()
    check_not_moved(run)
    config = read_live_config(scenario, [*(settings or []), f"out={run}"], "server up")
    check_settings(run, config)
    make_private_folder(run)
    write_scenario(run, config)
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
    dashboard = Dashboard(run, dashboard_port) if has_dashboard else None
    with dashboard or nullcontext(), RunDisplay(run, console, as_json) as display:
        if dashboard:
            # the token is for who sees the terminal, and not for a log
            page = dashboard.login_address if console.is_terminal else dashboard.address
            display.show(f"dashboard: {page} (token in {dashboard.token_file})")
        if tls:
            display.show(f"clients verify this server with {tls.authority}")
            display.show(f"its certificate ends on {certificate_end(tls.certificate):%Y-%m-%d}")
        is_finished = serve_run(config, superlink, client_keys, display, renewal)
    end = "finished" if is_finished else "stopped; the same command resumes it"
    display.show_end(f"{run}: {end}")


@app.command()
def status(
    run: Run = None,
    run_too: RunToo = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the rounds here, for TensorBoard.")
    ] = None,
) -> None:
    """Show the last round of a run and of its clients, also while it is running or waits.

    Example: samara server status --run runs/field
    """
    from rich.console import Console

    from samara.server.live.status import read_status
    from samara.server.live.status_table import make_status_table

    run_status = read_status(run := _the_run(run, run_too))
    console = Console()
    console.print(make_status_table(run_status))
    for number, client in run_status.clients.items():
        if client.last_failure:
            name = f" ({client.name})" if client.name else ""
            console.print(f"client {number}{name}, {client.last_failure}", markup=False)
    for line in (run_status.waits_for, run_status.describe_server()):
        if line:
            console.print(line, markup=False, soft_wrap=True)
    if tensorboard:
        from samara.server.round_curves import write_curves

        if write_curves(run, tensorboard):
            console.print(f"tensorboard --logdir {tensorboard}")
        else:
            console.print("no curves yet: no figure has two points")


@app.command()
def watch(run: Run = None, run_too: RunToo = None) -> None:
    """Watch a run: rounds, accuracy, and who reports, rests or is refused; Ctrl-C ends it.

    Example: samara server watch runs/field
    """
    from rich.console import Console

    from samara.server.watch.terminal import watch

    with suppress(KeyboardInterrupt):
        watch(_the_run(run, run_too), Console())


@app.command()
def inspect(run: Run = None, run_too: RunToo = None) -> None:
    """Show the rounds of a run, also while it is running, and the files that hold them.

    Example: samara server inspect runs/first
    """
    from rich.console import Console
    from rich.table import Table

    from samara.server.rounds.releases import describe_spent
    from samara.server.store import ledger_of, read_layout
    from samara.shared.ledger.reading import read_header, read_ledger, segment_paths, snapshot_paths

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
    if spent := describe_spent(run):
        Console().print(f"{spent}; the rounds name no clients", highlight=False)


@app.command()
def verify(run: Run = None, run_too: RunToo = None) -> None:
    """Replay a run from as far back as its ledger goes and prove every digest and snapshot.

    Example: samara server verify runs/first
    """
    from rich.console import Console

    from samara.server.store import cluster_folders, read_layout, replay_run
    from samara.shared.errors import LedgerError
    from samara.shared.ledger.verification import verify_ledger
    from samara.shared.replay import digest
    from samara.shared.result import RESULT_FILE, read_result

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
    from samara.shared.errors import ConfigError

    given = [folder for folder in (argument, option) if folder is not None]
    if len(given) != 1:
        raise ConfigError("name the folder of a run once, such as samara server inspect runs/first")
    return given[0]
