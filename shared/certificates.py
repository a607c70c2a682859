"""TLS certificates of a server, and an authority of its own for a server that has none.

A client verifies the server with FOLDER/ca.pem.
"""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shared.errors import SamaraError
from shared.files import make_folder, write_durably

CERTIFICATES_FOLDER = "certificates"
_AUTHORITY = "Samara run"
_YEARS = timedelta(days=10 * 365)


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a server's TLS identity.

    Attributes:
        certificate: certificate of the server, for the names that clients use.
        key: private key of the certificate.
        authority: certificate that clients verify the server's with.
    """

    certificate: Path
    key: Path
    authority: Path


def make_certificates(folder: Path, names: Sequence[str]) -> TlsFiles:
    """Return a server's certificate; create it at the first call, and again if it lacks a name.

    Args:
        folder: folder of the certificates. Its authority is kept, since clients have a copy.
        names: host names and addresses at which clients reach the server.
    """
    tls = TlsFiles(folder / "server.pem", folder / "server.key", folder / "ca.pem")
    authority_key = folder / "ca.key"
    wanted = {"localhost", "127.0.0.1", socket.gethostname(), *names}
    make_folder(folder)
    if not (tls.authority.exists() and authority_key.exists()):
        key = _new_key(authority_key)
        write_durably(
            tls.authority, _pem(_sign_certificate(_AUTHORITY, key, _AUTHORITY, key, None))
        )
    if not tls.certificate.exists() or not wanted <= certificate_names(tls.certificate):
        if tls.certificate.exists():
            wanted |= certificate_names(tls.certificate)
        issuer = _load_key(authority_key)
        certificate = _sign_certificate(
            "Samara server", _new_key(tls.key), _AUTHORITY, issuer, wanted
        )
        write_durably(tls.certificate, _pem(certificate))
    return tls


def _new_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    file.touch(0o600, exist_ok=True)
    file.chmod(0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return key


def _load_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SamaraError(f"{file}: cannot be read: {error}; restore it") from error
    assert isinstance(key, ec.EllipticCurvePrivateKey), "this module makes no other keys"
    return key


def _sign_certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: set[str] | None,
) -> x509.Certificate:
    """Return a server's certificate for some names, or an authority's if `names` is None."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + _YEARS)
        .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
    )
    if names is not None:
        alternatives = x509.SubjectAlternativeName([_general_name(n) for n in sorted(names)])
        builder = builder.add_extension(alternatives, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def certificate_names(certificate: Path) -> set[str]:
    """Return the host names and addresses of a certificate.

    Raises:
        SamaraError: if the file is no certificate or cannot be read.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    except (OSError, ValueError) as error:
        raise SamaraError(f"{certificate}: not a PEM certificate: {error}") from error
    return {str(name.value) for name in names}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
