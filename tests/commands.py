"""The command in this process."""

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]
