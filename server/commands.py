"""The commands that serve, show and check runs."""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samara.server.keeping import commands as keeping_commands
from samara.server.live import key_commands
from samara.server.live.server_port import DEFAULT_DASHBOARD_PORT, DEFAULT_PORT
from samara.shared.command_group import command_group

if TYPE_CHECKING:
    from rich.console import Console

app = command_group("Serve, show and check runs.")
app.add_typer(key_commands.app, name="keys")
app.command()(key_commands.invite)
app.command()(key_commands.sign)
app.command()(keeping_commands.backup)
app.command()(keeping_commands.restore)
Run = Annotated[Path | None, typer.Argument(help="Folder of a run.")]
RunToo = Annotated[Path | None, typer.Option("--run", help="Folder of a run, in place of RUN.")]


@app.callback()
def server() -> None:
    """Serve, show and check runs."""
    os.umask(0o077)  # only the owner may read run files, including files of Flower's processes


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
        Path | None, typer.Option("--cert", help="Certificate, PEM; by default Samara makes one.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Private key of --cert, PEM.")] = None,
    authority: Annotated[
        Path | None,
        typer.Option("--ca", help="PEM that verifies --cert; by default --cert itself."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Name or address of this server, for the run's certificate."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use no TLS and no client keys: any client may join.")
    ] = False,
    has_dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Serve a page and metrics of the run on this machine."),
    ] = False,
    dashboard_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the page; 0 selects a free port.")
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
    from samara.server.live.live_config import (
        SCENARIO_FILE,
        describe_early_start,
        read_live_config,
        write_scenario,
    )
    from samara.server.live.run_display import WARNING_STYLE, RunDisplay
    from samara.server.live.run_lock import (
        check_not_moved,
        check_not_served,
        lock_run,
        restored_if_not_started,
    )
    from samara.server.live.run_supervisor import FLOWER_FOLDER, serve_run
    from samara.server.live.superlink import max_reply_bytes
    from samara.server.live.superlink_process import SUPERLINK_LOG, SuperLinkProcess
    from samara.server.watch.dashboard import TOKEN_FILE, Dashboard
    from samara.shared.network.addresses import check_host
    from samara.shared.network.certificates import (
        CERTIFICATES_FOLDER,
        certificate_end,
        make_certificates,
    )
    from samara.shared.settings.run_settings import check_settings
    from samara.shared.storage.files import make_private_folder

    for name in names or []:
        check_host(name, "--name")
    run = run.resolve()
    check_not_moved(run)
    check_not_served(run)
    config = read_live_config(scenario, [*(settings or []), f"out={run}"], "server up")
    check_settings(run, config)
    console = Console()
    own = (SCENARIO_FILE, CERTIFICATES_FOLDER, FLOWER_FOLDER, TOKEN_FILE)
    rewritten = (SCENARIO_FILE, CERTIFICATES_FOLDER)
    log = run / FLOWER_FOLDER / SUPERLINK_LOG
    with restored_if_not_started(run, own, rewritten, log), lock_run(run):
        make_private_folder(run)
        write_scenario(run, config)
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
        # room for a frame and for Flower's message around it
        max_bytes = 2 * max_reply_bytes(config)
        superlink = SuperLinkProcess(run / FLOWER_FOLDER, host, port, tls, max_bytes, keys_folder)
        dashboard = Dashboard(run, dashboard_port) if has_dashboard else None
        with dashboard or nullcontext(), RunDisplay(run, console, as_json) as display:
            if dashboard:
                # a log must not contain the token
                page = dashboard.login_address if console.is_terminal else dashboard.address
                display.show(f"dashboard: {page} (token in {dashboard.token_file})")
            if tls:
                display.show(f"clients verify this server with {tls.authority}")
                display.show(
                    f"the server's certificate ends on {certificate_end(tls.certificate):%Y-%m-%d}"
                )
            if warning := describe_early_start(config):
                display.show(warning, WARNING_STYLE)
            is_finished = serve_run(config, superlink, client_keys, display, renewal)
    end = "finished" if is_finished else "stopped; the same command resumes it"
    display.show_end(f"{run}: {end}")


@app.command()
def status(
    run: Run = None,
    run_too: RunToo = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Redraw the status until the run ends, or until Ctrl-C.")
    ] = False,
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Show the rounds and the ledger's files instead.")
    ] = False,
    keys: Annotated[
        bool, typer.Option("--keys", help="Show the keys of all clients instead.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write the rounds to this folder, for TensorBoard.")
    ] = None,
) -> None:
    """Show a run and its clients, even while the run is served or waits for clients.

    Example: samara server status runs/field --watch
    """
    from rich.console import Console

    from samara.shared.errors import ConfigError

    run = _the_run(run, run_too)
    console = Console()
    if watch + rounds + keys + bool(tensorboard) > 1:
        raise ConfigError("give only one of --watch, --rounds, --keys and --tensorboard")
    if watch:
        from samara.server.watch.terminal import watch as draw

        with suppress(KeyboardInterrupt):
            draw(run, console)
    elif rounds:
        _show_rounds(run, console)
    elif keys:
        _show_keys(run, console)
    else:
        _show_clients(run, console)
    if tensorboard:
        from samara.server.watch.round_curves import write_curves

        if write_curves(run, tensorboard):
            console.print(f"tensorboard --logdir {tensorboard}")
        else:
            console.print("no curves yet: no quantity was measured in two rounds")


def _show_clients(run: Path, console: "Console") -> None:
    """Print a run's status table, its clients' last failures, and the state of its server."""
    from samara.server.live.status import read_status
    from samara.server.live.status_table import make_status_table

    run_status = read_status(run)
    console.print(make_status_table(run_status))
    for number, client in run_status.clients.items():
        if client.last_failure:
            name = f"{client.name} ({number})" if client.name else f"client {number}"
            console.print(f"{name}, {client.last_failure}", markup=False)
    for line in (run_status.waits_for, run_status.describe_server()):
        if line:
            console.print(line, markup=False, soft_wrap=True)


def _show_rounds(run: Path, console: "Console") -> None:
    """Print the rounds of a run, the files that hold them, and the spent privacy."""
    from samara.server.rounds.releases import describe_spent
    from samara.server.watch.rounds_table import make_rounds_tables

    console.print(*make_rounds_tables(run))
    if spent := describe_spent(run):
        console.print(
            f"{spent}; rounds with differential privacy do not name their clients", highlight=False
        )


def _show_keys(run: Path, console: "Console") -> None:
    """Print the clients' keys of a run, and problems of damaged key files."""
    from samara.server.live.keys import KEYS_FOLDER, ClientKeys
    from samara.server.live.keys_table import make_keys_table

    client_keys = ClientKeys(run / KEYS_FOLDER)
    console.print(make_keys_table(client_keys))
    for damage in client_keys.find_damage():
        print(damage)


@app.command()
def check(
    run: Run = None,
    run_too: RunToo = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Replay all rounds and verify their digests; stop the server first."
        ),
    ] = False,
) -> None:
    """Check a run's folder without changing it, and show problems and their remedies.

    With --replay, every round is replayed and must reproduce its recorded digest.

    Example: samara server check runs/field --replay
    """
    from itertools import chain

    from samara.server.keeping.check import examine
    from samara.server.keeping.proof import prove
    from samara.shared.check_result import Outcome

    run = _the_run(run, run_too)
    outcomes = set()
    for result in chain(examine(run), prove(run) if replay else ()):
        print(result)
        outcomes.add(result.outcome)
    if Outcome.FAIL in outcomes:
        raise typer.Exit(1)


def _the_run(argument: Path | None, option: Path | None) -> Path:
    """Return the folder that was given as an argument or as an option.

    Raises:
        ConfigError: if both or neither were given.
    """
    from samara.shared.errors import ConfigError

    given = [folder for folder in (argument, option) if folder is not None]
    if len(given) != 1:
        raise ConfigError(
            "name the folder of a run once, as an argument or with --run, for example: "
            "samara server status runs/first"
        )
    return given[0]
