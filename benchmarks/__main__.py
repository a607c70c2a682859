"""The command ``python -m benchmarks`` with all measurements that need no data."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from samara.command import run
from samara.shared.command_group import command_group

app = command_group("Measure this machine.")


@app.command()
def replay(
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapter", help="Adapter whose tensors are used. Repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds replayed together.")] = 32,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0 is one per core.")] = 0,
    repetitions: Annotated[
        int, typer.Option(min=1, help="Repetitions of all measurements, interleaved.")
    ] = 5,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file.")
    ] = None,
) -> None:
    """Compare the speed of each backend's replay and directions with MeZO's loop.

    Example: python -m benchmarks replay --adapter tinyllama --json replay.json
    """
    from rich.console import Console

    from benchmarks.speed.replay import measured, table
    from samara.shared.storage.files import write_durably

    rows = measured(adapters or ["minilm-top2", "tinyllama"], seeds, threads, repetitions)
    Console().print(table(rows))
    if json:
        from json import dumps

        write_durably(json, (dumps(rows, indent=1) + "\n").encode())
        print(f"rows in {json}")


class Shape(StrEnum):
    """Names of models of known shapes with random weights."""

    LLAMA_34M = "llama-34m"
    TINYLLAMA = "tinyllama-1.1b"
    LLAMA2_7B = "llama2-7b"


class Quantization(StrEnum):
    """Names of quantizations of the weights in the blocks."""

    NONE = "none"
    NF4 = "nf4"
    INT8 = "int8"


@app.command()
def step(
    json: Annotated[Path | None, typer.Option(help="File for the rows.")] = None,
    shape: Annotated[Shape, typer.Option(help="Model shape.")] = Shape.LLAMA_34M,
    quantization: Annotated[Quantization, typer.Option()] = Quantization.NONE,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="torch device.")] = "cpu",
    queries: Annotated[int, typer.Option(help="Directions in a step.")] = 4,
    batches: Annotated[str, typer.Option(help="Examples in a step, as 1,4,8.")] = "1,4,8",
    lengths: Annotated[str, typer.Option(help="Tokens in a sequence, as 32,64.")] = "32,64,128",
    layers: Annotated[str, typer.Option(help="Adapted blocks: all, top:2, …")] = "all",
    rank: Annotated[int, typer.Option(help="Rank of the adapters.")] = 4,
    repetitions: Annotated[int, typer.Option(help="Repetitions of each step, interleaved.")] = 5,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 is one per core.")] = 0,
) -> None:
    """Compare the speed of P-RGE steps, in every grouping, with MeZO-LoRA on the same rows.

    Example: python -m benchmarks step --json step.json --batches 4 --lengths 64
    """
    from benchmarks.speed.step import StepBench, run

    run(
        StepBench(
            shape=shape.value,
            quantization=quantization.value,
            dtype=dtype,
            device=device,
            queries=queries,
            batches=_numbers(batches, "--batches"),
            lengths=_numbers(lengths, "--lengths"),
            layers=layers,
            rank=rank,
            repetitions=repetitions,
            threads=threads,
        ),
        json,
    )


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(
            f"{option} {text}: give numbers with commas, such as 1,4,8"
        ) from error
    if min(numbers) < 1:
        raise typer.BadParameter(f"{option} {text}: give positive numbers")
    return numbers


if __name__ == "__main__":
    run(app)
