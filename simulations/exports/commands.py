"""The commands `samara adapter`, for models of runs and for measurements of damping and basis."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samara.shared.command_group import command_group
from samara.shared.settings.scenarios import scenario_file

if TYPE_CHECKING:
    from rich.console import Console

app = command_group("Export, apply and compare models of runs; measure damping and basis.")


class Form(StrEnum):
    """The form of an exported model."""

    PEFT = "peft"
    MERGED = "merged"
    LEDGER = "ledger"


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or of samara tune.")],
    out: Annotated[
        Path, typer.Option("--out", help="Output folder, or output file with --form ledger.")
    ],
    client: Annotated[
        str | None,
        typer.Option("--client", help="Client, by name or number, whose private rounds are added."),
    ] = None,
    form: Annotated[
        Form,
        typer.Option(
            help="peft: an adapter; merged: a complete model with the blocks that the run loads; "
            "ledger: a small file with a client's private rounds."
        ),
    ] = Form.PEFT,
    gguf: Annotated[
        Path | None,
        typer.Option(help="GGUF file of the base model: write a LoRA for llama.cpp and Ollama."),
    ] = None,
) -> None:
    """Export a run's model as PEFT adapter or complete model, or a client's private rounds.

    Example: samara adapter export runs/first --client 3 --out adapters/third
    """
    from rich.console import Console

    from samara.client.tuning.finished_tuning import is_tuning_folder
    from samara.shared.errors import ConfigError
    from samara.simulations.exports.adapter import client_of, export_ledger
    from samara.simulations.exports.adapter import export as write
    from samara.simulations.exports.tuned_export import export_tuned

    console = Console()
    if gguf is not None and form is not Form.PEFT:
        raise ConfigError("give only one of --gguf and --form")
    if is_tuning_folder(run):
        if client is not None or form is Form.LEDGER:
            raise ConfigError(
                f"{run}: a run of samara tune has no clients; leave out --client and --form ledger"
            )
        if form is Form.MERGED:
            raise ConfigError(f"{run}: a run of samara tune has only one form; leave out --form")
        _print_left_out(export_tuned(run, out, gguf), console)
        _print_place("model", out, gguf, console)
        return
    if form is Form.LEDGER:
        if client is None:
            raise ConfigError(
                "--form ledger: exports a client's private rounds; name the client with --client"
            )
        size = export_ledger(run, client_of(run, client), out)
        console.print(f"{out}: {size:,} bytes written", markup=False, soft_wrap=True)
        return
    own = None if client is None else client_of(run, client)
    is_merged = form is Form.MERGED
    _print_left_out(write(run, own, out, is_merged, gguf), console)
    _print_place("model" if is_merged else "adapter", out, gguf, console)


def _print_place(what: str, out: Path, gguf: Path | None, console: "Console") -> None:
    from samara.shared.model.gguf_adapter import gguf_use

    how = "" if gguf is None else f": {gguf_use(gguf, out)}"
    console.print(f"The {what} is in {out}{how}", markup=False, soft_wrap=True)


def _print_left_out(left_out: Mapping[str, Sequence[float]], console: "Console") -> None:
    for name, numbers in left_out.items():
        console.print(
            f"Left out, because no file format can contain it: {name} {numbers}", markup=False
        )


@app.command()
def basis(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, or name of a shipped scenario.")],
    out: Annotated[Path, typer.Option("--out", help="File for the basis.")],
    source: Annotated[
        str, typer.Option("--from", help="random-tokens, or a file with one public text per line.")
    ] = "random-tokens",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: key=value. Repeatable.")
    ] = None,
) -> None:
    """Measure an informed basis for a scenario's model, adapter and task, and write it.

    Example: samara adapter basis sst2 --set model.path=MODEL --out sst2.basis
    """
    from rich.console import Console

    from samara.shared.settings.config import load_scenario
    from samara.simulations.exports.basis_file import write_basis

    # the automatic value of adapter.layers depends on whether a run has a basis
    config = load_scenario(scenario_file(scenario), [*(settings or []), f"adapter.basis={out}"])
    for line in write_basis(config, source, out):
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def apply(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, or of samara tune.")],
    text: Annotated[str, typer.Argument(help="Text, or a JSON object with the fields.")],
    client: Annotated[
        str | None,
        typer.Option("--client", help="Client, by name or number, whose private rounds are added."),
    ] = None,
    personal: Annotated[
        Path | None,
        typer.Option("--personal", help="Add the private rounds of an exported ledger file."),
    ] = None,
) -> None:
    """Show how the base, global and personal models, or a tuned model, answer a text.

    Example: samara adapter apply runs/first "what a day" --client 3
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from samara.client.tuning.finished_tuning import is_tuning_folder
    from samara.shared.errors import ConfigError
    from samara.simulations.exports.adapter import client_of
    from samara.simulations.exports.quick_look import quick_look, tuned_look

    if client is not None and personal is not None:
        raise ConfigError("give only one of --client and --personal")
    if is_tuning_folder(run):
        if client is not None or personal is not None:
            raise ConfigError(
                f"{run}: a run of samara tune has no clients; leave out --client and --personal"
            )
        labels, models = tuned_look(run, text)
    else:
        own = None if client is None else client_of(run, client)
        labels, models = quick_look(run, text, own, personal)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("")
    for name in models:
        table.add_column(name, justify="right")
    for index, label in enumerate(labels):
        cells = [
            Text(f"{own[index]:.1%}", style="bold" if own.argmax() == index else "")
            for own in models.values()
        ]
        table.add_row(Text(label), *cells)
    Console().print(table)


@app.command()
def damping(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, or name of a shipped scenario.")],
    out: Annotated[Path, typer.Option("--out", help="Output file, for adapter.damping.")],
    texts: Annotated[
        Path | None,
        typer.Option(
            "--from", help="File of texts, one per line, or of JSON lines; default: random tokens."
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(help="Maximum number of texts; 0 means all texts, or 256 of random tokens."),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Override a setting (docs/reference/settings.md): key=value. Repeatable."
        ),
    ] = None,
) -> None:
    """Measure the scales of a readout's features on texts, and write them to a file.

    Example: samara adapter damping sst2 --set model.path=MODEL --set data.path=DATA --out d.bin
    """
    from rich.console import Console

    from samara.shared.settings.config import load_scenario
    from samara.simulations.exports.damping_file import write_damping

    config = load_scenario(scenario_file(scenario), settings or [])
    rank = write_damping(config, texts, count, out)
    Console().print(
        f"effective rank {rank:.1f}; written: {out}", markup=False, highlight=False, soft_wrap=True
    )


@app.command()
def diff(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    one: Annotated[str, typer.Argument(help="A client, by name or number.")],
    other: Annotated[str, typer.Argument(help="Another client, by name or number.")],
) -> None:
    """Show the differences between the private rounds of two clients.

    Example: samara adapter diff runs/first 3 5
    """
    from math import isnan

    from rich.console import Console
    from rich.table import Table

    from samara.simulations.exports.adapter import client_of
    from samara.simulations.exports.adapter import diff as differences

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("tensor")
    for heading in (f"norm of {one}", f"norm of {other}", "distance", "cosine"):
        table.add_column(heading, justify="right")
    for row in differences(run, client_of(run, one), client_of(run, other)):
        cosine = "" if isnan(row.cosine) else f"{row.cosine:+.3f}"
        table.add_row(row.name, f"{row.one:.4f}", f"{row.other:.4f}", f"{row.distance:.4f}", cosine)
    Console().print(table)
