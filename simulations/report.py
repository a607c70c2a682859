"""What a finished run says on the terminal."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_result(folder: Path, result: dict[str, Any]) -> None:
    """Print a run's result: whole splits, then every client, then cost and place."""
    console = Console()
    evaluations = result["evaluations"]
    console.print(_splits_table(evaluations))
    console.print(_clients_table(evaluations))
    rounds = len(result["rounds"])
    console.print(
        f"{rounds} rounds in {result['wall_seconds']:.1f} s, "
        f"{result['bytes_up']:,} bytes up, {result['bytes_down']:,} bytes down, "
        f"peak memory {result['peak_memory_bytes'] / 2**20:,.0f} MiB",
        highlight=False,
    )
    console.print(f"digest {result['final_digest'][:16]} after round {result['final_round']}")
    console.print(Text(f"result: {folder / 'result.json'}"), soft_wrap=True)


def _splits_table(evaluations: list[dict[str, Any]]) -> Table:
    table = Table(title="Global model, all clients' examples together")
    table.add_column("state")
    for column in ("split", "examples", "loss", "accuracy", "macro-F1"):
        table.add_column(column, justify="right")
    last = max(event["round"] for event in evaluations)
    for event in evaluations:
        if event["round"] in (0, last):
            table.add_row(
                "zero-shot" if event["round"] == 0 else f"round {last}",
                event["split"],
                str(event["examples"]),
                f"{event['loss']:.4f}",
                f"{event['accuracy']:.2%}",
                f"{event['macro_f1']:.2%}",
            )
    return table


def _clients_table(evaluations: list[dict[str, Any]]) -> Table:
    table = Table(title="Each client's own test examples")
    table.add_column("client", justify="right")
    for column in ("examples", "zero-shot", "global", "change"):
        table.add_column(column, justify="right")
    test = [event for event in evaluations if event["split"] == "test"]
    if not test:
        return table
    first, last = test[0]["clients"], test[-1]["clients"]
    for client in sorted(last, key=int):
        before, after = first.get(client), last[client]
        table.add_row(
            client,
            str(after["examples"]),
            f"{before['accuracy']:.2%}" if before else "",
            f"{after['accuracy']:.2%}",
            f"{after['accuracy'] - before['accuracy']:+.2%}" if before else "",
        )
    return table
