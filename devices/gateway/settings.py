"""The settings of `samara gateway up`."""

from dataclasses import dataclass
from pathlib import Path

from samara.devices.gateway.page_server.settings import PageSettings


@dataclass(frozen=True)
class GatewaySettings:
    """The settings of a gateway.

    Attributes:
        folder: folder of the gateway's secret, lock and certificates.
        phones: folder of admitted public keys (PEM); None admits the keys that the server has
            registered.
        listen: host:port to which phones attach.
        certificate: certificate chain for phones, PEM; None creates one.
        certificate_key: private key of `certificate`.
        names: host names and addresses of the gateway, for a created certificate.
        superlink: address of the SuperLink, host:port.
        key: private key that authenticates the gateway to the SuperLink.
        certificates: certificate of the SuperLink's certificate authority.
        insecure: whether both connections are plain text.
        web: settings of the page server for browsers; None serves no browsers.
    """

    folder: Path
    phones: Path | None
    listen: str
    certificate: Path | None
    certificate_key: Path | None
    names: tuple[str, ...]
    superlink: str
    key: Path | None
    certificates: Path | None
    insecure: bool
    web: PageSettings | None = None
