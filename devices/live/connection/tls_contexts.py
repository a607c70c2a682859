"""TLS contexts for connections to verified or unverified servers."""

import ssl
from pathlib import Path

from samara.shared.errors import DeviceError, InvitationError


def verifying_context(authority: Path | None) -> ssl.SSLContext:
    """Return a context for servers that a certificate authority verifies.

    Args:
        authority: PEM file of the authority's certificate; None means the system's authorities.

    Raises:
        DeviceError: if the certificate cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # includes ssl.SSLError
        raise DeviceError(
            f"{authority}: this file is not a readable certificate (PEM): {error}; copy the file "
            f"again"
        ) from error


def invited_context(authority: str) -> ssl.SSLContext:
    """Return a context for servers verified by the authority of an invitation.

    Raises:
        InvitationError: if the invitation contains no valid certificate.
    """
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise InvitationError(
            "the invitation contains no valid certificate; ask for another invitation"
        ) from error


def unverified_context() -> ssl.SSLContext:
    """Return a context that verifies no server; never send secrets over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
