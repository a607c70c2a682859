"""The gRPC server in which a gateway's phones find it."""

from collections.abc import Callable
from typing import Any

import grpc

from samara.devices.live.gateway_protocol import GATEWAY_KEEPALIVE, MAX_TASK_BYTES
from samara.devices.phone.gateway import MAX_ANSWER_BYTES, MAX_STREAMS, Gateway
from samara.shared.errors import DeviceError
from samara.shared.proto.trainer_pb2_grpc import add_GatewayServicer_to_server

OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port in use is an error
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_send_message_length", MAX_TASK_BYTES),
    ("grpc.max_concurrent_streams", 4),  # per connection; a phone has one
    ("grpc.max_metadata_size", 8192),
    *GATEWAY_KEEPALIVE,
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # for connections without a stream; a phone opens its stream at once
    ("grpc.max_connection_idle_ms", 10_000),
)


async def start_gateway(
    gateway: Gateway,
    address: str,
    certificate: bytes = b"",
    key: bytes = b"",
    read_certificate: Callable[[], tuple[bytes, bytes]] | None = None,
) -> tuple[Any, int]:
    """Start the gRPC server of a gateway.

    Args:
        gateway: gateway to serve.
        address: host:port to listen on; port 0 takes a free one.
        certificate: certificate chain, PEM; empty for plain text.
        key: private key of the certificate, PEM.
        read_certificate: function that returns certificate and key for each new connection; by
            default the given ones.

    Returns:
        The server and its port.

    Raises:
        DeviceError: if the port cannot be opened.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MAX_STREAMS)
    add_GatewayServicer_to_server(gateway, server)
    try:
        if certificate:
            credentials = _credentials(read_certificate or (lambda: (certificate, key)))
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except (RuntimeError, ValueError) as error:
        raise DeviceError(
            f"cannot listen on {address}; use host:port of this machine with a free port"
        ) from error
    await server.start()
    return server, port


def _credentials(read_certificate: Callable[[], tuple[bytes, bytes]]) -> Any:
    """Return credentials whose certificate is replaced when another one is read.

    gRPC is told of a certificate only when it has changed: a new configuration for every connection
    crashes its process when some hundred connect at the same time (grpcio 1.85).
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
