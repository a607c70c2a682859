"""TLS certificates of a server, signed by the server's own private certificate authority.

Clients verify the server with FOLDER/ca.pem. The certificates have the RFC 5280 extensions that
clients on Python 3.13 and later require (``ssl.VERIFY_X509_STRICT``).
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from samara.shared.errors import SamaraError
from samara.shared.storage.files import make_folder, write_durably, write_secret

CERTIFICATES_FOLDER = "certificates"
_GIVEN_NAMES = "names.txt"
_AUTHORITY = "Samara run"
_AUTHORITY_TIME, _SERVER_TIME = timedelta(days=10 * 365), timedelta(days=365)
RENEWAL_TIME = timedelta(days=30)
"""Remaining lifetime at which a server's certificate is renewed."""


@dataclass(frozen=True)
class TlsFiles:
    """The PEM files of a server's TLS identity.

    Attributes:
        certificate: certificate of the server, valid for the names that clients use.
        key: private key of the certificate.
        authority: certificate with which clients verify the server's certificate.
    """

    certificate: Path
    key: Path
    authority: Path


def make_certificates(folder: Path, names: Sequence[str]) -> TlsFiles:
    """Create or renew a server's TLS files if necessary, and return their paths.

    A server's certificate is valid for a year. It is renewed in its last 30 days, or if it lacks
    one of the names. The authority's key stays the same as long as the folder exists, so that
    clients can keep their copy of the authority's certificate.

    Args:
        folder: folder of the certificates.
        names: host names and addresses at which clients reach the server.

    Raises:
        SamaraError: if a file cannot be read, for example the authority's key.
    """
    tls = tls_files(folder)
    wanted = {"localhost", "127.0.0.1", socket.gethostname(), *names}
    make_folder(folder)
    if not tls.authority.exists():
        _new_key(authority_key(folder))
        _write_authority(folder)
    elif not _is_authority_current(tls.authority):
        _write_authority(folder)
    if not tls.certificate.exists():
        _write_certificate(folder, wanted)
    elif not (wanted <= certificate_names(tls.certificate) and _is_current(tls)):
        _write_certificate(folder, wanted | certificate_names(tls.certificate))
    if names:
        write_durably(folder / _GIVEN_NAMES, "".join(f"{name}\n" for name in names).encode())
    return tls


def given_names(folder: Path) -> list[str]:
    """Return the names that the server of these certificates was last started with.

    If these names were not recorded, the result is the names in the certificate, without the
    machine's own name.
    """
    try:
        return (folder / _GIVEN_NAMES).read_text(encoding="utf-8").split()
    except OSError:
        own = {"localhost", "127.0.0.1", socket.gethostname()}
        return sorted(certificate_names(tls_files(folder).certificate) - own)


def renew_certificate(folder: Path) -> TlsFiles:
    """Create a new key for a server, and a certificate for the same names by the same authority.

    Raises:
        SamaraError: if the folder contains no certificate yet, or a file cannot be read.
    """
    tls = tls_files(folder)
    names = certificate_names(tls.certificate)
    if not _is_authority_current(tls.authority):
        _write_authority(folder)
    _write_certificate(folder, names)
    return tls


def certificate_end(certificate: Path) -> datetime:
    """Return the expiry time of a certificate.

    Raises:
        SamaraError: if the file is not a certificate, or cannot be read.
    """
    return _read_certificate(certificate).not_valid_after_utc


def tls_files(folder: Path) -> TlsFiles:
    """Return the paths of the files that `make_certificates` writes to a folder."""
    return TlsFiles(folder / "server.pem", folder / "server.key", folder / "ca.pem")


def authority_key(folder: Path) -> Path:
    """Return the path of the authority's private key, also written by `make_certificates`."""
    return folder / "ca.key"


def is_key_of(key: Path, certificate: Path) -> bool:
    """Return whether a file holds the private key of a certificate.

    Raises:
        SamaraError: if the certificate cannot be read.
    """
    public = _read_certificate(certificate).public_key()
    try:
        return public == _load_key(key).public_key()
    except SamaraError:
        return False  # missing, or not written completely


def _is_current(tls: TlsFiles) -> bool:
    """Return whether a certificate matches its key and its authority, and does not expire soon."""
    certificate, authority = _read_certificate(tls.certificate), _read_certificate(tls.authority)
    try:
        issuer = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        return False  # from an earlier version
    is_lasting = certificate.not_valid_after_utc > datetime.now(UTC) + RENEWAL_TIME
    has_key = is_key_of(tls.key, tls.certificate)
    return has_key and is_lasting and issuer.key_identifier == _key_identifier(authority).digest


def _is_authority_current(file: Path) -> bool:
    """Return whether strict clients will accept an authority's certificate for another year."""
    certificate = _read_certificate(file)
    try:
        certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return False
    return certificate.not_valid_after_utc > datetime.now(UTC) + _SERVER_TIME


def _write_authority(folder: Path) -> None:
    """Write the authority's certificate."""
    key = _load_key(authority_key(folder))
    builder = _builder(_AUTHORITY, key, _AUTHORITY_TIME).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    builder = builder.add_extension(_key_usage(is_authority=True), critical=True)
    write_durably(tls_files(folder).authority, _pem(builder.sign(key, hashes.SHA256())))


def _write_certificate(folder: Path, names: Iterable[str]) -> None:
    """Write a new server key, and then its certificate."""
    tls = tls_files(folder)
    issuer_key = _load_key(authority_key(folder))
    authority = _read_certificate(tls.authority)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
        _key_identifier(authority)
    )
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)])
    server_purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        _builder("Samara server", _new_key(tls.key), _SERVER_TIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(server_purpose, critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(alternatives, critical=False)
    )
    write_durably(tls.certificate, _pem(builder.sign(issuer_key, hashes.SHA256())))


def _builder(
    subject: str, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    """Return a builder for a certificate that the authority issues; the caller adds key usage."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _AUTHORITY)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_identifier(certificate: x509.Certificate) -> x509.SubjectKeyIdentifier:
    return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    """Return the key usage of an authority, which signs certificates, or of a server."""
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _new_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_secret(file, secret)
    return key


def _load_key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SamaraError(f"{file}: cannot be read: {error}; restore the file") from error
    assert isinstance(key, ec.EllipticCurvePrivateKey), "this module makes no other keys"
    return key


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def certificate_names(certificate: Path) -> set[str]:
    """Return the host names and addresses of a certificate.

    Raises:
        SamaraError: if the file is not a certificate or cannot be read.
    """
    extensions = _read_certificate(certificate).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _read_certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise SamaraError(
            f"{file}: this is not a PEM certificate: {error}; restore the file"
        ) from error


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
