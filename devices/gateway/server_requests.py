"""Requests of a gateway to the server about invitations and keys, over HTTPS."""

import http.client
from pathlib import Path

from samara.devices.live.connection.tls_contexts import verifying_context
from samara.shared.errors import DeviceError
from samara.shared.network.addresses import parse_address
from samara.shared.network.invitation import MAX_WELCOME_BYTES

_SECONDS = 10.0


class ServerRequests:
    """Sends requests to the server, each on a new connection; several threads may use it.

    Args:
        superlink: address of the server, host:port.
        authority: certificate that verifies the server, PEM; None means the system's authorities.
    """

    def __init__(self, superlink: str, authority: Path | None) -> None:
        self._authority = authority
        self._host, self._port = parse_address(superlink)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return the status and the body of an answer.

        Raises:
            DeviceError: if the server does not answer, or its answer is too long.
        """
        context = verifying_context(self._authority)
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=_SECONDS, context=context
        )
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            answer = response.read(MAX_WELCOME_BYTES + 1)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise DeviceError(f"the server cannot be asked: {error}") from error
        finally:
            connection.close()
        if len(answer) > MAX_WELCOME_BYTES:
            raise DeviceError(f"the server answered with more than {MAX_WELCOME_BYTES} bytes")
        return response.status, answer
