"""The commands `samara server backup` and `samara server restore`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer


def backup(
    run: Annotated[Path, typer.Argument(help="Folder of the run, which may be served meanwhile.")],
    target: Annotated[Path, typer.Argument(help="File to write, or a folder for the file.")],
    moves: Annotated[
        bool, typer.Option("--move", help="Move the run: this folder cannot be served any more.")
    ] = False,
) -> None:
    """Write a run with its private keys to one file, even while the run is served.

    Example: samara server backup runs/field backups/
    """
    from samara.server.keeping.backup import back_up

    taken = back_up(run, target, moves)
    rounds = ", ".join(
        f"{'' if name == '.' else name + ' '}round {number}"
        for name, number in taken.rounds.items()
    )
    print(f"{taken.file}: {rounds}, {taken.files:,} files, {taken.bytes:,} bytes")
    if taken.secrets:
        held = f"the backup contains {len(taken.secrets)} private keys or secrets"
        print(f"{held} and is not encrypted: keep it secret")
    if taken.left_out:
        print(f"left out: {', '.join(taken.left_out)}")
    for key, blob in taken.missing.items():
        print(f"left out: {key}, since this machine lacks sha256:{blob}")
    if moves:
        print(
            "this folder cannot be served any more: use `samara server restore` on the other host"
        )


def restore(
    file: Annotated[Path, typer.Argument(help="File of `samara server backup`.")],
    out: Annotated[Path, typer.Option("--out", help="New folder for the run; empty or missing.")],
    reached: Annotated[
        int | None,
        typer.Option(min=0, help="Last round of the earlier server, for a run with privacy."),
    ] = None,
) -> None:
    """Create a run's folder from a backup, so that the run can continue on this host.

    An error leaves no folder.

    Example: samara server restore field-round-120.backup --out runs/field
    """
    from samara.server.keeping.restoring import restore as restore_run
    from samara.server.live.live_config import SCENARIO_FILE

    restored = restore_run(file, out, reached)
    print(f"{out}: continues after round {restored.round}, from the backup of {restored.taken}")
    if not restored.moved:
        print(
            "stop the earlier server if it still serves this run: a client that follows two "
            "servers of one run is refused by one of them"
        )
    scenario = out / SCENARIO_FILE
    if scenario.exists():  # otherwise no server has served this run
        command = ["samara", "server", "up", "--run", str(out), str(scenario)]
        print(shlex.join([*command, "--name", "ADDRESS-OF-THIS-HOST"]))
