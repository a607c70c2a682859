"""A phone's errors about its gateway's address, and its limit on the gateway's messages."""

import gc
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.shared.proto.trainer_pb2 import FromPhone, Task, TaskKind, ToPhone
from samara.shared.proto.trainer_pb2_grpc import (
    GatewayServicer,
    GatewayStub,
    add_GatewayServicer_to_server,
)


def test_a_connection_that_is_reset_is_no_diagnosis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset_every_connection() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # the test is over
                    return
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        thread = threading.Thread(target=reset_every_connection, daemon=True)
        thread.start()
        endpoint = GatewayEndpoint(f"127.0.0.1:{server.getsockname()[1]}", None)
        for _ in range(50):
            assert endpoint.diagnose() in (
                "",
                "the gateway's address does not use TLS; check its port",
            )
        gc.collect()  # an unclosed socket is a warning, and so an error
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_an_address_where_nobody_listens_is_no_diagnosis() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert GatewayEndpoint(f"127.0.0.1:{port}", None).diagnose() == ""


class _LongMessage(GatewayServicer):  # type: ignore[misc]
    """A gateway that sends a task with 6 MiB of state."""

    def Attach(self, messages: Iterator[FromPhone], context: Any) -> Iterator[ToPhone]:  # noqa: N802
        yield ToPhone(task=Task(kind=TaskKind.TRAIN, snapshot=bytes(6 * 2**20)))


def test_a_message_longer_than_any_may_be_breaks_the_stream() -> None:
    """A million elements allow messages of 8 MB.

    A thousand elements need less than the least limit.
    """
    server = grpc.server(ThreadPoolExecutor(2))
    add_GatewayServicer_to_server(_LongMessage(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    taken: list[int] = []
    try:
        for elements in (10**6, 1000):
            endpoint = GatewayEndpoint(
                f"127.0.0.1:{port}", insecure=True, elements=partial(int, elements)
            )
            with endpoint.channel() as channel:
                try:
                    (message,) = GatewayStub(channel).Attach(iter(()))
                    taken.append(len(message.task.snapshot))
                except grpc.RpcError as error:
                    code = error.code()
    finally:
        server.stop(None).wait()
    assert taken == [6 * 2**20]
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
