"""Declaration of a benchmark's options by name and default."""

import argparse
from collections.abc import Sequence
from functools import partial
from types import UnionType
from typing import Any


def arguments(
    description: str | None, given: Sequence[str] | None = None, **options: Any
) -> argparse.Namespace:
    """Parse the options of a command line.

    Args:
        description: text of ``--help``.
        given: arguments to parse instead of the command line's.
        options: default of each option, which also sets the option's type. False means a flag. A
            list means values separated by commas, of the type of its first element. An empty list
            means an option that may be repeated. A type means a required option. ``Path | None``
            means an optional path.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(value, type):
            parser.add_argument(option, type=value, required=True)
        elif isinstance(value, UnionType):
            parser.add_argument(option, type=value.__args__[0])
        elif value == []:
            parser.add_argument(option, action="append", default=[])
        elif isinstance(value, list):
            parser.add_argument(option, type=partial(listed, kind=type(value[0])), default=value)
        else:
            parser.add_argument(option, type=type(value), default=value)
    return parser.parse_args(given)


def listed(text: str, kind: type = str) -> list[Any]:
    """Return the comma-separated values in an option's text."""
    return [kind(part) for part in text.split(",")]
