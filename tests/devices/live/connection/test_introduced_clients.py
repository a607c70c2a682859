"""The length limit of a gateway's messages: it depends only on what its own clients declared."""

import json
import logging
from pathlib import Path

import pytest
from helpers import layout_of

from samara.devices.live.connection.introduced_clients import (
    INTRODUCED_FILE,
    IntroducedClients,
    most_gateway_message_bytes,
)
from samara.shared.network.log_budget import LogBudget
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.frames.hello import Hello
from samara.shared.protocol.frames.masking import SealedShares
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.message_sizes import MOST_OF_CLIENT_BYTES, most_message_bytes
from samara.shared.protocol.secure_aggregation.graph import DEGREE
from samara.shared.settings.sections import MOST_ELEMENTS

TRAIN = TaskKind.TRAIN


def introduced(folder: Path) -> IntroducedClients:
    return IntroducedClients(folder, LogBudget(logging.getLogger("test")))


def hello_of(layout: str) -> bytes:
    return Hello(1, 4, 0, bytes(32), layout, "{}").encode()


def hello_with(elements: int) -> bytes:
    return hello_of(json.dumps(layout_of(elements).to_json()))


def clients_in(folder: Path, elements: int) -> int:
    """Return the number of clients that the limit allows for."""
    more = most_gateway_message_bytes(TRAIN, folder) - most_message_bytes(TRAIN, elements)
    assert more % MOST_OF_CLIENT_BYTES == 0
    return more // MOST_OF_CLIENT_BYTES


def test_a_gateway_without_clients_takes_what_a_client_without_runs_takes(tmp_path: Path) -> None:
    for kind in TaskKind.values():
        assert most_gateway_message_bytes(kind, tmp_path) == most_message_bytes(kind, 0)
    (tmp_path / INTRODUCED_FILE).write_text('{"clients": ')
    assert clients_in(tmp_path, 0) == 0


def test_the_bound_follows_the_largest_state_and_the_number_of_clients(tmp_path: Path) -> None:
    clients = introduced(tmp_path)
    for number, elements in enumerate((10, 30, 20)):
        clients.add(number, hello_with(elements))
        clients.add(number, hello_with(elements))
    assert clients_in(tmp_path, 30) == 4
    introduced(tmp_path).add(7, hello_with(5))  # another process
    assert clients_in(tmp_path, 30) == 4


@pytest.mark.parametrize(
    "hello",
    [hello_of("{"), hello_of("[]"), hello_of("1"), Refusal(bytes(8), 1, 3, 0).encode(), b"SMRA"],
    ids=["half", "no object", "a number", "another frame", "no frame"],
)
def test_a_client_that_says_nothing_sound_counts_alone(hello: bytes, tmp_path: Path) -> None:
    introduced(tmp_path).add(1, hello)
    assert clients_in(tmp_path, 0) == 1


def test_no_hello_raises_the_bound_beyond_the_largest_state_of_any_run(tmp_path: Path) -> None:
    introduced(tmp_path).add(1, hello_with(4 * MOST_ELEMENTS))
    assert clients_in(tmp_path, MOST_ELEMENTS) == 1


def test_a_clients_share_holds_the_sealed_shares_of_a_neighbourhood() -> None:
    neighbours = range(2**31 - DEGREE - 1, 2**31)
    sealed = SealedShares(bytes(8), 2**31 - 1, dict.fromkeys(neighbours, bytes(94)))
    assert len(sealed.encode()) + 1024 < MOST_OF_CLIENT_BYTES
