"""Explanations of rejected server certificates, and their remedies."""

import ssl
from datetime import UTC, datetime
from typing import NamedTuple

_NOT_YET_VALID = 9
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID."""
_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""
_SET_CLOCK = "set the clock by a time server, `timedatectl set-ntp true`"


class CertificateProblem(NamedTuple):
    """The problem with a rejected certificate, and its remedy."""

    finding: str
    remedy: str


def explain_certificate_error(
    error: ssl.SSLCertVerificationError, remedy: str
) -> CertificateProblem:
    """Explain why a certificate is rejected, and name the remedy.

    Args:
        error: error of the connection.
        remedy: remedy if the clock is not the cause.
    """
    clock = f"by this machine's clock, which says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _NOT_YET_VALID:
        return CertificateProblem(f"its certificate is not valid yet {clock}", _SET_CLOCK)
    if error.verify_code == _EXPIRED:
        renewal = (
            "if it is right, ask the operator to renew the certificate (samara server keys rotate)"
        )
        finding = f"its certificate is no longer valid {clock}"
        return CertificateProblem(finding, f"{_SET_CLOCK}; {renewal}")
    return CertificateProblem(f"its certificate is not accepted: {error.verify_message}", remedy)


def certificate_error_in(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the certificate error among the causes of another error, or None."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause
