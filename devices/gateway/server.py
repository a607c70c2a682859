"""The gRPC server that serves a gateway's phones.

The server listens on this machine only. Phones reach it through `PassedConnections`; streams on
other connections are rejected.
"""

from collections.abc import Callable
from typing import Any

import grpc

from samara.devices.gateway.admission import RejectionError
from samara.devices.gateway.gateway import MAX_ANSWER_BYTES, MAX_STREAMS, Gateway
from samara.devices.gateway.passed_connections import (
    MAX_UNPROVEN,
    MAX_UNPROVEN_OF_NETWORK,
    MAX_UNPROVEN_STREAMS,
    PassedConnections,
)
from samara.devices.gateway.phone_stream import GrpcStream
from samara.devices.live.connection.gateway_protocol import GATEWAY_KEEPALIVE, MAX_TASK_BYTES
from samara.shared.errors import DeviceError
from samara.shared.network.http.limited_listener import LimitedListener
from samara.shared.proto.trainer_pb2_grpc import GatewayServicer, add_GatewayServicer_to_server

OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port in use must raise an error
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", MAX_TASK_BYTES),
    ("grpc.max_concurrent_streams", MAX_UNPROVEN_STREAMS),  # per connection; a phone has one
    ("grpc.max_metadata_size", 8192),
    *GATEWAY_KEEPALIVE,
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # This limit ends connections without a stream; a phone opens its stream at once.
    ("grpc.max_connection_idle_ms", 10_000),
)


class GatewayServer:
    """A gateway's gRPC server, and the connections passed on to it.

    Attributes:
        connections: the connections.
        port: port to which phones connect.
    """

    def __init__(self, grpc_server: Any, connections: PassedConnections, port: int) -> None:
        self._grpc_server = grpc_server
        self.connections = connections
        self.port = port

    async def stop(self, grace: float | None) -> None:
        """Accept no more connections, then end the streams after `grace` seconds, and stop."""
        self.connections.close()
        await self._grpc_server.stop(grace)
        await self.connections.end()


class _Service(GatewayServicer):  # type: ignore[misc]
    """The gRPC service, which hands streams to the gateway."""

    connections: PassedConnections

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Attach(self, messages: Any, context: Any) -> None:  # noqa: N802
        """Serve one phone's stream; see trainer.proto."""
        stream = GrpcStream(context, self.connections)
        if not stream.is_allowed:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "this connection may not open another stream; open another connection",
            )
        try:
            await self._gateway.serve(stream)
        except RejectionError as rejection:
            await context.abort(rejection.code, rejection.reason)


async def start_gateway(
    gateway: Gateway,
    address: str,
    certificate: bytes = b"",
    key: bytes = b"",
    read_certificate: Callable[[], tuple[bytes, bytes]] | None = None,
) -> GatewayServer:
    """Start the gRPC server of a gateway.

    Args:
        gateway: gateway to serve.
        address: host:port to listen on; port 0 means any free port.
        certificate: certificate chain, PEM; empty for plain text.
        key: private key of the certificate, PEM.
        read_certificate: function that returns certificate and key for each new connection; by
            default, `certificate` and `key`.

    Returns:
        The server.

    Raises:
        DeviceError: if the port cannot be opened.
    """
    host, _, port = address.rpartition(":")
    try:
        listener = LimitedListener(
            host.strip("[]"), int(port), MAX_UNPROVEN, MAX_UNPROVEN_OF_NETWORK, gateway.lines
        )
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(
            f"cannot listen on {address}; use host:port of this machine with a free port"
        ) from error
    most_streams = MAX_STREAMS + MAX_UNPROVEN * MAX_UNPROVEN_STREAMS
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=most_streams)
    service = _Service(gateway)
    add_GatewayServicer_to_server(service, server)
    inside = "127.0.0.1:0"
    if certificate:
        credentials = _credentials(read_certificate or (lambda: (certificate, key)))
        port_of_grpc = server.add_secure_port(inside, credentials)
    else:
        port_of_grpc = server.add_insecure_port(inside)
    service.connections = PassedConnections(listener, port_of_grpc)
    await server.start()
    return GatewayServer(server, service.connections, listener.getsockname()[1])


def _credentials(read_certificate: Callable[[], tuple[bytes, bytes]]) -> Any:
    """Return credentials with the certificate that `read_certificate` returns at a connection.

    gRPC gets a new configuration only after the certificate has changed. With a new configuration
    for every connection, the gateway's process crashes when a few hundred clients connect at once
    (grpcio 1.85).
    """
    current = read_certificate()

    def read_changes() -> Any:
        nonlocal current
        if (read := read_certificate()) == current:
            return None
        current = read
        return _certificate_configuration(*current)

    return grpc.dynamic_ssl_server_credentials(_certificate_configuration(*current), read_changes)


def _certificate_configuration(certificate: bytes, key: bytes) -> Any:
    return grpc.ssl_server_certificate_configuration([(key, certificate)])
