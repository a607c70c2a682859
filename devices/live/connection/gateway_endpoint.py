"""The address of a gateway, its gRPC channel, and a diagnosis of TLS problems."""

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from samara.devices.live.connection.certificate_errors import explain_certificate_error
from samara.devices.live.connection.gateway_protocol import KEEPALIVE
from samara.devices.live.connection.tls_contexts import unverified_context, verifying_context
from samara.shared.network.addresses import parse_address
from samara.shared.protocol.message_sizes import most_task_bytes

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a gateway limits the streams per connection
    ("grpc.enable_http_proxy", 0),
    *KEEPALIVE,
)
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class GatewayEndpoint:
    """The address and certificate authority of a gateway.

    Attributes:
        address: host:port.
        authority: PEM file of the certificate authority; None means the system's.
        insecure: whether the connection is plain text.
        elements: function that returns the number of elements in the largest state of the client's
            runs. The size limit of received messages follows from this number. A longer message
            breaks the connection, and a new connection is made.
    """

    address: str
    authority: Path | None = None
    insecure: bool = False
    elements: Callable[[], int] = lambda: 0

    def channel(self) -> Any:
        """Return a gRPC channel to the gateway.

        Raises:
            DeviceError: if the authority's certificate cannot be read.
        """
        most = ("grpc.max_receive_message_length", most_task_bytes(self.elements()))
        options = (most, *OPTIONS)
        if self.insecure:
            return grpc.insecure_channel(self.address, options)
        verifying_context(self.authority)
        authority = self.authority.read_bytes() if self.authority else None
        credentials = grpc.ssl_channel_credentials(authority)
        return grpc.secure_channel(self.address, credentials, options)

    def diagnose(self) -> str:
        """Describe a TLS problem with the gateway, and its remedy; empty without a problem.

        gRPC's own error says at most that a handshake failed.

        Raises:
            DeviceError: if the authority's certificate cannot be read.
        """
        try:
            self._shake_hands(
                unverified_context() if self.insecure else verifying_context(self.authority)
            )
        except ssl.SSLCertVerificationError as error:
            usual = (
                "give the gateway's authority with --certs, and a host name in the gateway's "
                "certificate"
            )
            return "; ".join(explain_certificate_error(error, usual))
        except ssl.SSLError:
            return "" if self.insecure else "the gateway's address does not use TLS; check its port"
        except OSError:
            return ""
        return "the gateway uses TLS; give --certs instead of --insecure" if self.insecure else ""

    def _shake_hands(self, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        host, port = parse_address(self.address, "--gateway")
        failure: OSError | None = None
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, address in addresses:
            plain = socket.socket(family, kind, protocol)
            # Wrap before connecting: a connection that is reset while being wrapped would leak.
            with context.wrap_socket(plain, server_hostname=host) as connection:
                connection.settimeout(_CONNECT_SECONDS)
                try:
                    connection.connect(address)
                    return
                except ssl.SSLError:
                    raise
                except OSError as error:
                    failure = error
        if failure is not None:
            raise failure
