"""Preflight check that the server admits this client; it runs before a model is loaded."""

import http.client
from base64 import b64encode
from datetime import UTC, datetime

from samara.devices.live.connection.tls_contexts import verifying_context
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import SamaraError
from samara.shared.network.addresses import parse_address
from samara.shared.network.rejection import HEADER, RejectionCode, rejection_in
from samara.shared.protocol.signing import SigningKey

_PATH = "/v1/fleet/push-object"
"""Fleet API endpoint for parts of messages.

The check sends an empty part that belongs to no message, so that the server passes nothing on to
Flower.
"""
_SECONDS = 10.0


def ask_admission(settings: ClientSettings) -> RejectionCode | None:
    """Return the server's reason for rejecting a client.

    The result is None if the server admits the client, or gives no answer to this question.

    Args:
        settings: settings of a client with a key that reaches the server by a SuperNode.
    """
    if settings.key is None:
        return None
    host, port = parse_address(settings.superlink)
    try:
        connection = http.client.HTTPSConnection(
            host, port, timeout=_SECONDS, context=verifying_context(settings.certificates)
        )
        try:
            connection.request("POST", _PATH, b"", signed_headers(SigningKey(settings.key)))
            return rejection_in(connection.getresponse().getheader(HEADER))
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, SamaraError):
        return None


def signed_headers(key: SigningKey) -> dict[str, str]:
    """Return the headers of a fleet API request, signed with a key at the current time."""
    from samara.shared.flower_compat import (
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
        TIMESTAMP_HEADER,
    )

    timestamp = datetime.now(UTC).isoformat()
    return {
        "content-type": "application/protobuf",
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(key.public).decode(),
        TIMESTAMP_HEADER: timestamp,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(key.sign(timestamp.encode())).decode(),
    }
