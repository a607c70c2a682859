"""Contexts of TLS connections: with a server that an authority verifies, or with anybody."""

import ssl
from pathlib import Path

from samara.shared.errors import DeviceError, InvitationError


def verifying_context(authority: Path | None) -> ssl.SSLContext:
    """Return a context that connects to servers of an authority.

    Args:
        authority: certificate of the authority, PEM; None means those of this system.

    Raises:
        DeviceError: if that is no certificate that can be read.
    """
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # ssl.SSLError is one
        raise DeviceError(
            f"{authority}: not a certificate (PEM) that can be read: {error}"
        ) from error


def invited_context(authority: str) -> ssl.SSLContext:
    """Return a context that connects to servers by the authority of an invitation.

    Raises:
        InvitationError: if that is no certificate.
    """
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise InvitationError("the invitation holds no certificate; ask for another one") from error


def unverified_context() -> ssl.SSLContext:
    """Return a context that connects to whoever answers; nothing secret may be sent there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
