"""The server's warning about settings with which a live run begins too early."""

import pytest

from samara.server.live.live_config import describe_early_start
from samara.shared.settings.config import RunConfig


@pytest.mark.parametrize(("available", "minimum"), [(2, 2), (3, 1), (2, 5)])
def test_a_run_that_begins_before_its_rounds_can_change_something_is_warned_of(
    available: int, minimum: int
) -> None:
    flat = RunConfig().flat() | {"cohort.available": available, "cohort.minimum": minimum}
    warning = describe_early_start(RunConfig.of(flat, "test"))
    assert bool(warning) == (minimum > available)
    assert not warning or "begins with 2 clients" in warning
    assert not warning or warning.endswith("set cohort.available to 5")
