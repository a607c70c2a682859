"""The pauses between an executor's requests to its SuperNode for messages."""

import pytest
from flwr.clientapp import ClientApp

from samara.devices.live.connection.executor import Executor


@pytest.mark.parametrize(
    ("at_once", "idle", "pause"),
    [
        (1, 0.0, 0.3),
        (1, 6.0, 0.3),
        (1, 20.0, 1.0),
        (1, 3600.0, 3.0),
        (8, 0.0, 0.02),
        (8, 60.0, 0.3),
    ],
)
def test_a_client_that_nobody_asks_asks_less_often(at_once: int, idle: float, pause: float) -> None:
    assert Executor(ClientApp(), b"secret", at_once)._pause_after(idle) == pytest.approx(pause)
