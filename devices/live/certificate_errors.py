"""Why a server's certificate is not accepted, in words, and what to do about it."""

import ssl
from datetime import UTC, datetime
from typing import NamedTuple

_NOT_YET_VALID, _EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_SET_CLOCK = "set the clock by a time server, `timedatectl set-ntp true`"


class CertificateProblem(NamedTuple):
    """A finding about a certificate that is not accepted, and its remedy."""

    finding: str
    remedy: str


def explain_certificate_error(
    error: ssl.SSLCertVerificationError, remedy: str
) -> CertificateProblem:
    """Return what is wrong with a certificate, and the remedy.

    Args:
        error: error of the connection.
        remedy: remedy if the clock has nothing to do with it.
    """
    clock = f"by this machine's clock, which says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if error.verify_code == _NOT_YET_VALID:
        return CertificateProblem(f"its certificate is not valid yet {clock}", _SET_CLOCK)
    if error.verify_code == _EXPIRED:
        renewal = "if it is right, the operator renews the certificate (samara server keys rotate)"
        finding = f"its certificate is no longer valid {clock}"
        return CertificateProblem(finding, f"{_SET_CLOCK}; {renewal}")
    return CertificateProblem(f"its certificate is not accepted: {error.verify_message}", remedy)


def certificate_error_in(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the error of a certificate by which another one was caused; None if there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause
