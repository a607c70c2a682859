"""A run that invites devices: its folder with certificates, and what serves it over TLS."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from live import serve_app

from shared.certificates import CERTIFICATES_FOLDER, make_certificates


def new_run(folder: Path) -> Path:
    """Make a run's folder, with certificates and nothing else; return it."""
    folder.mkdir()
    make_certificates(folder / CERTIFICATES_FOLDER, [])
    return folder


def authority_of(run: Path) -> Path:
    """The certificate that verifies a run's server, PEM."""
    return run / CERTIFICATES_FOLDER / "ca.pem"


def serve(app: Any, run: Path) -> AbstractContextManager[str]:
    """Serve an app over TLS with the certificate of a run; yield the address."""
    return serve_app(app, make_certificates(run / CERTIFICATES_FOLDER, []))
