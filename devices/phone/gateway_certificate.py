"""The certificate by which phones verify a gateway; it is renewed while the gateway serves."""

import logging
import ssl
import time

from samara.devices.phone.gateway_settings import GatewaySettings
from samara.shared.certificates import CERTIFICATES_FOLDER, make_certificates
from samara.shared.errors import DeviceError, SamaraError

log = logging.getLogger("samara.gateway")

_RENEWAL_SECONDS = 3600.0


class GatewayCertificate:
    """A certificate chain and its private key: the given one, or one that the gateway makes.

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
        """Renew once an hour, and return whether the certificate has changed."""
        if time.monotonic() <= self._due:
            return False
        self._due += _RENEWAL_SECONDS
        return self.renew()

    def renew(self) -> bool:
        """Load the files again, and return whether they have changed.

        An own certificate is made anew before it ends. Where files cannot be used, the current
        certificate stays, and a warning says why.
        """
        before = self.current
        try:
            self.current = _load(self._settings)
        except (SamaraError, OSError) as error:
            log.warning("the certificate cannot be renewed: %s", error)
        return self.current != before


def _load(settings: GatewaySettings) -> tuple[bytes, bytes]:
    """Return the certificate for phones and its private key, PEM; empty for plain text."""
    if settings.insecure:
        return b"", b""
    certificate, key = settings.certificate, settings.certificate_key
    if certificate is None:
        tls = make_certificates(settings.folder / CERTIFICATES_FOLDER, settings.names)
        certificate, key = tls.certificate, tls.key
    if key is None:
        raise DeviceError("--cert needs --cert-key, the certificate's private key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        return certificate.read_bytes(), key.read_bytes()
    except FileNotFoundError as error:
        raise DeviceError(f"{certificate} or {key}: {error.strerror}") from error
    except (OSError, ssl.SSLError) as error:
        raise DeviceError(
            f"{certificate} and {key}: not a certificate and its private key without passphrase, "
            f"in PEM: {error}"
        ) from error
