"""What a finished run says on the terminal."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shared.config import EMBEDDED_DATA
from shared.tasks.embedded import embedded_ceilings
from shared.tasks.metrics import Confusion

Evaluation = Mapping[str, Any]
_ORDER = ("base rate", "zero-shot", "label bias", "local-only", "global", "personalized")


def print_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Print a run's result: whole splits, then every client, then cost and place."""
    console = Console()
    console.print(splits_table(result["evaluations"]))
    console.print(clients_table(client_columns(result["evaluations"])))
    if result["config"]["data.path"] == EMBEDDED_DATA:
        limits = embedded_ceilings(result["config"]["data.clients"], result["config"]["data.seed"])
        console.print(
            f"ceilings: {limits.common_rule:.1%} for the best common rule, "
            f"{limits.own_rule:.1%} for every writer's own",
            highlight=False,
        )
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


def print_tuning(folder: Path, result: Mapping[str, Any]) -> None:
    """Print what a tuning run reached, then cost and place."""
    console = Console()
    metric = result["metric"]
    table = Table(title=f"{result['config']['method']}, {metric}")
    table.add_column("state")
    for column in ("split", "examples", "loss", metric):
        table.add_column(column, justify="right")
    states = {result["config"]["method"]: result}
    if "best_step" in result:
        best = f"step {result['best_step']}"
        states = {"zero-shot": result["zero_shot"], best: result}
    for state, figures in states.items():
        for split in ("validation", "test"):
            own = figures[split]
            table.add_row(
                state, split, str(own["examples"]), f"{own['loss']:.4f}", f"{own[metric]:.2%}"
            )
    console.print(table)
    console.print(
        f"{result['seconds']:.1f} s, peak memory {result['peak_memory_bytes'] / 2**20:,.0f} MiB",
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

    Majority is the answer that is commonest in all clients' validation examples together, given
    to every question. Then the personal comparison where there is one, otherwise zero-shot and
    global.
    """
    tests = [event["columns"] for event in evaluations if event["split"] == "test"]
    if not tests:
        return {}
    validation = next(event for event in evaluations if event["split"] == "validation")
    commonest = int(np.sum(validation["columns"]["global"]["confusion"], axis=1).argmax())
    majority = {"majority": _constant(tests[0]["global"], commonest)}
    if len(tests[-1]) > 1:
        return majority | {name: tests[-1][name] for name in _ORDER}
    return majority | {"zero-shot": tests[0]["global"], "global": tests[-1]["global"]}


def _constant(figures: Mapping[str, Any], label: int) -> dict[str, Any]:
    """Figures of answering one label to every question that `figures` counts."""
    clients = {}
    for client, own in figures["clients"].items():
        counts = np.zeros_like(own["confusion"])
        counts[:, label] = np.sum(own["confusion"], axis=1)
        confusion = Confusion(counts)
        clients[client] = {
            "examples": confusion.examples,
            "accuracy": confusion.accuracy,
            "macro_f1": confusion.macro_f1,
        }
    return {
        "clients": clients,
        "mean_client_accuracy": np.mean([own["accuracy"] for own in clients.values()]),
        "mean_client_macro_f1": np.mean([own["macro_f1"] for own in clients.values()]),
    }


def clients_table(columns: Mapping[str, Any], run: str = "") -> Table:
    """Accuracy of every client under every column, then means of accuracy and macro-F1."""
    title = "Accuracy on each client's own test examples"
    table = _narrow_table(f"{run}: {title}" if run else title)
    table.add_column("client", justify="right")
    table.add_column("examples", justify="right")
    _add_columns(table, columns)
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


def means_table(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Mean accuracy over the clients under every column, a row per run."""
    table = _narrow_table("Mean accuracy over the clients")
    table.add_column("run")
    names = list(dict.fromkeys(name for columns in runs.values() for name in columns))
    _add_columns(table, names)
    for run, columns in runs.items():
        means = [
            columns[name]["mean_client_accuracy"] if name in columns else None for name in names
        ]
        table.add_row(run, *["" if mean is None else f"{mean:.1%}" for mean in means])
    return table


def _narrow_table(title: str) -> Table:
    return Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)


def _add_columns(table: Table, names: Iterable[str]) -> None:
    """Short names, so that all columns fit 80 characters."""
    for name in names:
        heading = name.replace("personalized", "personal").replace(" ", "\n")
        table.add_column(heading, justify="right")
