"""The settings of a page server, validated before anything is opened."""

from dataclasses import dataclass
from pathlib import Path

from samara.devices.phone.extra import require_web
from samara.shared.errors import ConfigError
from samara.shared.network.addresses import parse_address
from samara.shared.network.http.guard import is_loopback

BUILT_PAGE = Path(__file__).resolve().parents[3] / "build" / "phone-page"
"""Folder in which `make phone-page` builds a checkout's page."""
SHIPPED_PAGE = Path(__file__).parents[2] / "phone" / "web" / "page"
"""Folder of the page in an installed package."""


@dataclass(frozen=True)
class PageSettings:
    """The settings of a page server.

    Attributes:
        address: host:port to listen on.
        program: program from ``samara phone export --runtime onnx``.
        page: folder of the built page; None means the page of the checkout or of the installed
            package.
        origin: origin at which browsers find the page behind a reverse proxy.
        has_certificate: whether the operator gave the gateway a certificate.
    """

    address: str
    program: Path
    page: Path | None
    origin: str
    has_certificate: bool

    @property
    def has_tls(self) -> bool:
        """True if browsers connect by TLS directly to this server."""
        return self.has_certificate and not self.origin

    @property
    def page_folder(self) -> Path:
        """The folder of the page."""
        return self.page or (BUILT_PAGE if BUILT_PAGE.is_dir() else SHIPPED_PAGE)

    @property
    def url(self) -> str:
        """The address at which browsers find the page."""
        return self.origin or f"{'https' if self.has_tls else 'http'}://{self.address}"

    def check(self) -> None:
        """Check that browsers will be able to use the page.

        Raises:
            ConfigError: if the address is invalid, or browsers would refuse to create keys or to
                attach there.
            DeviceError: if an optional dependency is missing.
        """
        require_web()
        host, _ = parse_address(self.address, "--web")
        if self.origin and not is_loopback(host):
            raise ConfigError(
                f"--web {self.address} with --web-origin: a reverse proxy passes on plain text; "
                "listen on 127.0.0.1, which only this machine reaches"
            )
        if not (self.has_tls or is_loopback(host)):
            raise ConfigError(
                f"--web {self.address}: phones' browsers create keys and attach only if they trust "
                "the certificate; add --cert FILE and --cert-key FILE of a public authority, or "
                "listen on 127.0.0.1 behind a reverse proxy, with --web-origin"
            )
