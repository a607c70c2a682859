"""The preflight's question whether the server turns this client away, before a model is loaded."""

import http.client
from base64 import b64encode
from datetime import UTC, datetime

from samara.devices.live.settings import ClientSettings
from samara.devices.live.tls_contexts import verifying_context
from samara.shared.addresses import parse_address
from samara.shared.errors import SamaraError
from samara.shared.rejection import HEADER, RejectionCode, rejection_in
from samara.shared.signing import SigningKey

_PATH = "/v1/fleet/push-object"
"""An empty part of a reply, which belongs to none: the server passes nothing of it on to Flower."""
_SECONDS = 10.0


def ask_admission(settings: ClientSettings) -> RejectionCode | None:
    """Return why a server turns a client away; None if it does not, or does not say.

    Args:
        settings: settings of a client with a key that reaches the server by Flower's wire.
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
    """Return the headers of a request to the fleet API that is signed with a key, now."""
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
