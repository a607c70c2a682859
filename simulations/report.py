"""What a finished run says on the terminal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

Evaluation = Mapping[str, Any]


def print_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Print a run's result: whole splits, then every client, then cost and place."""
    console = Console()
    console.print(splits_table(result["evaluations"]))
    console.print(clients_table(client_columns(result["evaluations"])))
    console.print(
        f"{len(result['rounds'])} rounds in {result['wall_seconds']:.1f} s, "
        f"{result['bytes_up']:,} bytes up, {result['bytes_down']:,} bytes down, "
        f"peak memory {result['peak_memory_bytes'] / 2**20:,.0f} MiB",
        highlight=False,
    )
    refused = sum(len(event["refused"]) for event in result["evaluations"])
    agree = "all digests agree" if not refused else f"{refused} clients refused, see the result"
    console.print(
        f"after round {result['final_round']}: {result['final_digest'][:16]}, {agree}",
        highlight=False,
    )
    console.print(Text(f"result: {folder / 'result.json'}"), soft_wrap=True)


def splits_table(evaluations: list[Evaluation]) -> Table:
    """The global model before and after, on all clients' examples together."""
    table = Table(title="Global model, all clients' examples together")
    table.add_column("state")
    for column in ("split", "examples", "loss", "accuracy", "macro-F1"):
        table.add_column(column, justify="right")
    last = max(event["round"] for event in evaluations)
    for event in evaluations:
        if event["round"] in (0, last) and len(event["columns"]) == 1:
            whole = event["columns"]["global"]
            table.add_row(
                "zero-shot" if event["round"] == 0 else f"round {last}",
                event["split"],
                str(whole["examples"]),
                f"{whole['loss']:.4f}",
                f"{whole['accuracy']:.2%}",
                f"{whole['macro_f1']:.2%}",
            )
    return table


def client_columns(evaluations: list[Evaluation]) -> dict[str, Any]:
    """Figures per way of serving a client, on the clients' own test examples.

    The personal comparison where there is one, otherwise zero-shot and global.
    """
    tests = [event["columns"] for event in evaluations if event["split"] == "test"]
    if not tests:
        return {}
    if len(tests[-1]) > 1:
        return dict(tests[-1])
    return {"zero-shot": tests[0]["global"], "global": tests[-1]["global"]}


def clients_table(columns: Mapping[str, Any]) -> Table:
    """Accuracy of every client under every column, then means of accuracy and macro-F1."""
    table = Table(title="Accuracy on each client's own test examples")
    table.add_column("client", justify="right")
    table.add_column("examples", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    clients = sorted({c for figures in columns.values() for c in figures["clients"]}, key=int)
    for client in clients:
        own = [figures["clients"].get(client) for figures in columns.values()]
        examples = next(str(figures["examples"]) for figures in own if figures)
        cells = [f"{figures['accuracy']:.1%}" if figures else "" for figures in own]
        table.add_row(client, examples, *cells)
    table.add_section()
    for title, key in (("mean", "mean_client_accuracy"), ("macro-F1", "mean_client_macro_f1")):
        table.add_row(title, "", *[f"{figures[key]:.1%}" for figures in columns.values()])
    return table
