"""Values that differ in one input at a time, for tests of the inputs that a result depends on."""

from collections.abc import Mapping, Sequence
from typing import Any


def changed_one_at_a_time(value: Any) -> list[Any]:
    """Return all values that differ from a nested JSON value in a single place."""
    if isinstance(value, Mapping):
        return [
            {**value, key: other} for key in value for other in changed_one_at_a_time(value[key])
        ]
    if isinstance(value, Sequence) and not isinstance(value, str):
        some = [
            [*value[:at], other, *value[at + 1 :]]
            for at in range(len(value))
            for other in changed_one_at_a_time(value[at])
        ]
        return [*some, [*value, "more"]]
    if isinstance(value, bool):
        return [not value]
    return [value + ("'" if isinstance(value, str) else 1)]
