"""The certificate by which phones verify a gateway; it is renewed while the gateway serves."""

import logging
import ssl
import time

from samara.devices.gateway.settings import GatewaySettings
from samara.shared.errors import DeviceError, SamaraError
from samara.shared.network.certificates import CERTIFICATES_FOLDER, make_certificates

log = logging.getLogger("samara.gateway")

_RENEWAL_SECONDS = 3600.0


class GatewayCertificate:
    """A certificate chain and its private key, given by the operator or created by the gateway.

    Attributes:
        current: chain and key, PEM; empty for plain text.

    Raises:
        DeviceError: if the files are not a certificate and its key.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._due = time.monotonic() + _RENEWAL_SECONDS
        self.current = _load(settings)

    def renew_if_due(self) -> bool:
        """Renew at most once an hour; return whether the certificate has changed."""
        if time.monotonic() <= self._due:
            return False
        self._due += _RENEWAL_SECONDS
        return self.renew()

    def renew(self) -> bool:
        """Load the files again; return whether they have changed.

        A certificate that the gateway has created is replaced before it expires. If the files
        cannot be used, the current certificate stays, and a warning gives the reason.
        """
        before = self.current
        try:
            self.current = _load(self._settings)
        except (SamaraError, OSError) as error:
            log.warning("the gateway's certificate cannot be renewed and stays as it is: %s", error)
        return self.current != before


def _load(settings: GatewaySettings) -> tuple[bytes, bytes]:
    """Return the certificate for phones and its private key, PEM; empty for plain text."""
    if settings.insecure:
        return b"", b""
    certificate = settings.certificate
    key = settings.certificate_key
    if certificate is None:
        tls = make_certificates(settings.folder / CERTIFICATES_FOLDER, settings.names)
        certificate = tls.certificate
        key = tls.key
    if key is None:
        raise DeviceError(
            "--cert needs --cert-key, the certificate's private key; give both options"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        return certificate.read_bytes(), key.read_bytes()
    except FileNotFoundError as error:
        raise DeviceError(
            f"{certificate} or {key} cannot be read: {error.strerror}; check --cert and --cert-key"
        ) from error
    except (OSError, ssl.SSLError) as error:
        raise DeviceError(
            f"{certificate} and {key} are not a certificate and its private key: {error}; "
            "give --cert and --cert-key in PEM, without a passphrase"
        ) from error
