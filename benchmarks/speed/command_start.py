"""The time of ``import samara``, and of every command's ``--help``.

    python -m benchmarks.speed.command_start

Every measurement is the minimum of several new processes, because other work on the machine can
only add time. The output has wall-clock seconds and processor seconds (user and system). Processor
seconds are more reliable on a busy machine.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from resource import RUSAGE_CHILDREN, getrusage
from typing import NamedTuple

import click
import typer

REPETITIONS = 5


class Seconds(NamedTuple):
    """The wall-clock seconds and processor seconds of a process."""

    clock: float
    processor: float


def commands() -> list[tuple[str, ...]]:
    """Return every command and group of commands, as the words after ``samara``."""
    from samara.command import app

    def below(command: click.Command, words: tuple[str, ...]) -> list[tuple[str, ...]]:
        own = command.commands.items() if isinstance(command, click.Group) else ()
        return [words, *(each for name, sub in own for each in below(sub, (*words, name)))]

    return below(typer.main.get_command(app), ())


def seconds_of(arguments: Sequence[str]) -> Seconds:
    """Return the minimum seconds of several processes of this Python with the given arguments."""
    measured = []
    for _ in range(REPETITIONS):
        used, begun = getrusage(RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        clock, now = time.perf_counter() - begun, getrusage(RUSAGE_CHILDREN)
        processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        measured.append(Seconds(clock, processor))
    return Seconds(min(one.clock for one in measured), min(one.processor for one in measured))


def main() -> None:
    """Print a line after each measurement."""
    print("clock  processor")
    lines = {
        "python -c pass": ["-c", "pass"],
        "import samara": ["-c", "import samara"],
        "import torch": ["-c", "import torch"],
    }
    for words in commands():
        lines[" ".join(("samara", *words, "--help"))] = ["-m", "samara", *words, "--help"]
    for name, arguments in lines.items():
        own = seconds_of(arguments)
        print(f"{own.clock:5.2f}  {own.processor:9.2f}  {name}", flush=True)


if __name__ == "__main__":
    main()
