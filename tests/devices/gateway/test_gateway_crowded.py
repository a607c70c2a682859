"""A gateway among strangers who hold many streams without a proof, over real sockets."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gateways import Echo, Served, keys_in, serve_phones
from strangers import CALLS_OF_CONNECTION, STREAMS, grpc_calls, strangers, web_socket_call
from web_phones import ServedPage, StreamEndedError, WebSocketStub, serve_page
from websockets.exceptions import WebSocketException

from samara.devices.live.connection.gateway_stream import answer_tasks, attach
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey

PHONES = 6
SECONDS = 10.0
"""Seconds within which all phones must attach."""
ELSEWHERE, SAME = "127.0.1.1", "127.0.0.1"
"""An address of another network than the phones' own, and theirs."""


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path, PHONES)


def attach_by_web(page: ServedPage, phone: Echo, key: SigningKey, stop: threading.Event) -> None:
    """Be a phone's page, which opens its stream again a second after it has ended."""
    while not stop.is_set():
        try:
            for _ in answer_tasks(phone, key, WebSocketStub(page.open)):  # type: ignore[arg-type]
                pass
        except (StreamEndedError, WebSocketException, OSError):
            stop.wait(1.0)


@contextmanager
def attaching(
    keys: Sequence[SigningKey], attach_one: Callable[[Echo, SigningKey, threading.Event], Any]
) -> Iterator[None]:
    """Phones that attach, each in a thread of its own."""
    stop = threading.Event()
    for key in keys:
        phone = Echo(client_index_of_key(key.public))
        threading.Thread(target=attach_one, args=(phone, key, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def all_attached(served: Served) -> None:
    served.until(lambda gateway: len(gateway.attached_phones) == PHONES, SECONDS)


@pytest.mark.parametrize("source", [ELSEWHERE, SAME])
def test_strangers_of_one_address_keep_no_phone_out(keys: list[SigningKey], source: str) -> None:
    with serve_phones(keys) as served, ExitStack() as stack:
        connections = STREAMS // CALLS_OF_CONNECTION
        stack.enter_context(strangers(served.port, grpc_calls, connections, source))

        def attach_one(phone: Echo, key: SigningKey, stop: threading.Event) -> None:
            attach(phone, key, served.endpoint, stop)

        stack.enter_context(attaching(keys, attach_one))
        all_attached(served)


@pytest.mark.parametrize("source", [ELSEWHERE, SAME])
def test_strangers_of_one_address_keep_no_browser_out(
    keys: list[SigningKey], source: str, tmp_path: Path
) -> None:
    with (
        serve_phones(keys) as served,
        serve_page(served, tmp_path / "page") as page,
        ExitStack() as stack,
    ):
        stack.enter_context(strangers(page.port, web_socket_call, STREAMS, source))
        stack.enter_context(attaching(keys, partial(attach_by_web, page)))
        all_attached(served)
