"""The report of a finished run on the terminal."""

import shlex
from collections.abc import Callable, Mapping
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samara.shared.results.result import RESULT_FILE, ClientMetrics, Fleet, RunResult
from samara.shared.results.traffic import Traffic, traffic_of
from samara.shared.settings.choices import describe_choices
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.embedded import embedded_ceilings
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.terms.columns import GLOBAL
from samara.simulations.comparison.columns import (
    Figures,
    client_columns,
    explain_columns,
    first_column,
    has_texts,
)
from samara.simulations.comparison.measure import BITS_PER_BYTE, figures_of, measure_of
from samara.simulations.comparison.seeds import SeedInterval
from samara.simulations.comparison.verdict import verdict_of
from samara.simulations.report.fleet import clock_of, kinds_of, span_of, unit_of_parts
from samara.simulations.report.writing import read_writing, writing_table

_CLIENTS_SHOWN = 60
"""Maximum number of clients for a table with one row per client."""
_NAME_WIDTH = 12
_OF_LABELS = ("accuracy", "macro-f1", "f1", "matthews", "pearson")
"""Metrics of tasks with labels or candidates, for which `samara adapter apply` works."""
_LABEL_HEADINGS = ("examples", "loss", "accuracy", "macro-F1")
_FigureRow = tuple[str, Callable[[ClientMetrics], float], str]
_LABEL_ROWS: tuple[_FigureRow, ...] = (
    ("mean", lambda own: own.accuracy, "{:.1%}"),
    ("macro-F1", lambda own: own.macro_f1, "{:.1%}"),
)
_TEXT_ROWS: tuple[_FigureRow, ...] = (
    ("mean", lambda own: figures_of(own).second, "{:.2f}"),
    ("bits/byte", lambda own: -figures_of(own).quality, "{:.3f}"),
)
"""The last rows of the clients' table: title, function of a client's metrics, number format."""


def print_result(folder: Path, result: RunResult, console: Console | None = None) -> None:
    """Print a run's result: splits, clients, costs, and the path of the result."""
    console = console or Console()
    if result.evaluations:
        console.print(splits_table(result, has_texts(result)))
    if any(event.split == "test" and event.columns for event in result.evaluations):
        columns = client_columns(result)
        console.print(clients_table(columns, result.name_of))
        console.print(Text(explain_columns(columns), style="dim"))
        verdict = verdict_of(columns)
        if verdict is not None:
            console.print(Text(verdict.sentence(), style="bold"))
            if verdict.loses:
                console.print(Text(verdict.what_to_try(result.config), style="yellow"))
    if result.no_gain:
        console.print(Text(result.no_gain, style="yellow"))
    console.print(Text(result.describe_split()))
    if shared := result.describe_shared_texts():
        console.print(Text(shared, style="yellow"))
    clients = int(result.config["data.clients"])
    seed = int(result.config["data.seed"])
    is_generated = result.config["data.path"] == EMBEDDED_DATA and not has_texts(result)
    # the best common rule needs every writer's vote on every message, which takes long
    if is_generated and clients <= _CLIENTS_SHOWN:
        limits = embedded_ceilings(clients, seed)
        console.print(
            f"highest possible accuracy: {limits.common_rule:.1%} with the best common rule, "
            f"{limits.own_rule:.1%} with every writer's own rule",
            highlight=False,
        )
    if writing := read_writing(folder, result):
        console.print(writing_table(writing))
        console.print(Text(writing.note(), style="dim"))
    if result.fleet:
        console.print(fleet_table(result.fleet))
        begun = result.fleet.begun
        ended = result.fleet.ended
        console.print(
            f"virtual time: {span_of(ended - begun)}, from {clock_of(begun)} to {clock_of(ended)}",
            highlight=False,
        )
    console.print(
        f"{min(len(result.rounds), _federated_rounds(result))} rounds "
        f"in {result.wall_seconds:.1f} s, "
        f"peak memory {result.peak_memory_bytes / 2**20:,.0f} MiB",
        highlight=False,
    )
    if result.automatic:
        chosen = describe_choices(result.automatic, result.config)
        console.print(f"{chosen}; reasons: {RESULT_FILE}, key automatic", highlight=False)
    traffic = traffic_of(result)
    console.print(traffic_table(traffic))
    for sentence in traffic.sentences():
        console.print(Text(sentence))
    if privacy := result.describe_privacy():
        console.print(privacy, highlight=False)
    refusing = {client for event in result.evaluations for client in event.refused}
    agree = "all digests agree"
    if refusing:
        clients_text = "1 client" if len(refusing) == 1 else f"{len(refusing)} clients"
        agree = f"{clients_text} refused to evaluate; see the result"
    console.print(
        f"after {_last_state(result)}: {result.final_digest[:16]}, {agree}",
        highlight=False,
    )
    console.print(Text(f"result: {folder / RESULT_FILE}"), soft_wrap=True)


def print_tuning(folder: Path, result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of a tuning run, its cost, and the path of the result."""
    console = console or Console()
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


def print_next(folder: Path, result: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the commands that use a tuned model; print nothing if no command can use it.

    Args:
        folder: folder of the run.
        result: content of the run's result.json.
        console: console to print on; None for standard output.
    """
    config = result["config"]
    is_rounded = config.get("stream-compression", "none") != "none"
    has_classifier = config.get("classifier", "label-words") != "label-words"
    if "best_step" not in result or is_rounded or has_classifier:
        return
    place = shlex.quote(str(folder))
    commands = [f"samara adapter export {place} --out model"]
    if result["metric"] in _OF_LABELS:
        commands.insert(0, f'samara adapter apply {place} "a text"')
    for command in commands:
        (console or Console()).print(Text(f"next: {command}"), soft_wrap=True)


def seeds_table(intervals: Mapping[str, SeedInterval]) -> Table:
    """Return a table of every column's quality: mean and interval over seeds, and each seed."""
    first = next(iter(intervals.values()))
    seeds = list(first.by_seed)
    measure = first.measure
    table = Table(
        title=f"Mean {measure.name} over the clients, {len(seeds)} seeds",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("model", no_wrap=True)
    for heading in ("mean", "95 % interval", *(f"seed {seed}" for seed in seeds)):
        table.add_column(heading, justify="right")
    for name, own in intervals.items():
        low, high = sorted([own.low, own.high], key=lambda end: end * measure.factor)
        interval = "" if isnan(low) else f"{measure.shown(low)} … {measure.shown(high)}"
        each = (measure.shown(own.by_seed[seed]) for seed in seeds)
        table.add_row(name, measure.shown(own.mean), interval, *each)
    return table


def traffic_table(traffic: Traffic) -> Table:
    """Return a table that compares a run's bytes with the bytes of FedAvg."""
    (first, *headings), *rows = traffic.table()
    table = Table(title=traffic.title, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def fleet_table(fleet: Fleet) -> Table:
    """Return a table of mean costs per device, by kind of device."""
    table = Table(title="Means per device, over the whole run", box=None, padding=(0, 1, 0, 0))
    table.add_column("kind", no_wrap=True)
    kinds = kinds_of(fleet)
    unit = unit_of_parts(kinds)
    # short headings, so that all columns fit in 80 characters
    for column in (
        "",
        "step\ns",
        f"work\n{unit.symbol}",
        "link\ns",
        f"wait\n{unit.symbol}",
        "kJ",
        "MiB",
    ):
        table.add_column(column, justify="right")
    for column in ("in\ntime", "late", "failed"):
        table.add_column(column, justify="right")
    for kind in kinds:
        table.add_row(
            kind.name.replace(", ", "\n", 1),
            str(kind.count),
            f"{kind.step_seconds:.3g}",
            f"{kind.compute_seconds / unit.seconds:.1f}",
            f"{kind.transfer_seconds:.1f}",
            f"{kind.waiting_seconds / unit.seconds:.1f}",
            "" if kind.energy_joules is None else f"{kind.energy_joules / 1000:.2f}",
            f"{kind.peak_memory_bytes / 2**20:.0f}",
            str(kind.outcomes["reported"]),
            str(kind.outcomes["late"]),
            str(kind.outcomes.total() - kind.outcomes["reported"] - kind.outcomes["late"]),
        )
    return table


def _federated_rounds(result: RunResult) -> int:
    return RunConfig.of(result.config, f"result of run {result.run_id}").federated_rounds


def _last_state(result: RunResult) -> str:
    """Return the name of the last state: the last round, and the common intercept if added."""
    rounds = _federated_rounds(result)
    return f"round {min(result.final_round, rounds)}" + (
        " and the common intercept" if result.final_round > rounds else ""
    )


def splits_table(result: RunResult, is_text: bool = False) -> Table:
    """Return a table of the global model's metrics before and after the rounds.

    Numbers are means over clients. For a generation, they are computed over all clients' tokens.

    Args:
        result: result of a run.
        is_text: whether the run is a generation.
    """
    evaluations = result.evaluations
    first = first_column(result)
    who = "over all clients' tokens" if is_text else "mean over the clients"
    table = Table(title=f"Global model, {who}")
    table.add_column("state")
    headings = ("tokens", "loss", "perplexity", "tokens predicted") if is_text else _LABEL_HEADINGS
    for column in ("split", *headings):
        table.add_column(column, justify="right")
    last = max(event.round for event in evaluations)
    for event in evaluations:
        # the personal comparison on test examples has a separate table
        is_comparison = event.split == "test" and len(event.columns) > 1
        if event.round in (0, last) and GLOBAL in event.columns and not is_comparison:
            whole = event.columns[GLOBAL]
            loss = float(np.mean([own.loss for own in whole.clients.values()]))
            shown = [f"{whole.mean_client_accuracy:.2%}", f"{whole.mean_client_macro_f1:.2%}"]
            if is_text:
                loss = whole.loss
                shown = [f"{np.exp(loss):.2f}", f"{whole.accuracy:.2%}"]
            state = first if event.round == 0 else "trained"
            table.add_row(state, event.split, str(whole.examples), f"{loss:.4f}", *shown)
    return table


def short_name(name: str) -> str:
    """Return a client's name without control characters, cut to the width of a column."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= _NAME_WIDTH else f"{plain[: _NAME_WIDTH - 1]}…"


def clients_table(columns: Mapping[str, Figures], name_of: Callable[[int], str] = str) -> Table:
    """Return a table of every client's accuracy by column, with means of accuracy and macro-F1.

    If clients report an AUC, the table also shows the mean AUC. For a generation, the table shows
    perplexity, with means of perplexity and bits per byte.

    Args:
        columns: metrics by column and client.
        name_of: function that returns a client's name.
    """
    is_text = measure_of(own for its in columns.values() for own in its.values()) is BITS_PER_BYTE
    rows = _TEXT_ROWS if is_text else _LABEL_ROWS
    _, of_client, cell = rows[0]
    table = Table(
        title=f"{'Perplexity' if is_text else 'Accuracy'} on each client's own test examples",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("client", justify="right")
    table.add_column("tokens" if is_text else "examples", justify="right")
    for name in columns:
        # short names, so that all columns fit in 80 characters
        heading = name.replace("personalized", "personal").replace(" ", "\n")
        table.add_column(heading, justify="right")
    clients = sorted({client for figures in columns.values() for client in figures})
    for client in clients if len(clients) <= _CLIENTS_SHOWN else ():
        by_column = [figures.get(client) for figures in columns.values()]
        examples = next(str(figures.examples) for figures in by_column if figures)
        cells = [cell.format(of_client(own)) if own else "" for own in by_column]
        table.add_row(Text(short_name(name_of(client))), examples, *cells)
    table.add_section()
    for title, figure, form in rows:
        means = [np.mean([figure(own) for own in its.values()]) for its in columns.values()]
        table.add_row(title, "", *[form.format(mean) for mean in means])
    areas = [[own.auc for own in its.values() if own.auc is not None] for its in columns.values()]
    if any(areas):
        table.add_row("AUC", "", *[f"{np.mean(own):.3f}" if own else "" for own in areas])
    return table
