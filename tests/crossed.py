"""All pairs of test cases and variants, few of which run with `make test`."""

from collections.abc import Collection

import pytest


def crossed(cases: Collection[object], ways: Collection[object]) -> list[object]:
    """Parameters of every pair; all are `exhaustive` but one pair per case and one per way."""
    return [
        pytest.param(
            case,
            way,
            marks=[] if i % len(ways) == j or j % len(cases) == i else pytest.mark.exhaustive,
            id=f"{case}-{way}",
        )
        for i, case in enumerate(cases)
        for j, way in enumerate(ways)
    ]
