"""The certificates of a run: requirements of strict clients, and renewal."""

import ssl
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from samara.shared.errors import SamaraError
from samara.shared.network import certificates as module
from samara.shared.network.certificates import TlsFiles, make_certificates, renew_certificate


def accept(tls: TlsFiles, authority: Path, name: str = "127.0.0.1", is_strict: bool = True) -> None:
    """Shake hands in memory, like a client of Python 3.13 or of an earlier version.

    Raises:
        ssl.SSLCertVerificationError: if the client does not accept the certificate.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(tls.certificate, tls.key)
    client_context = ssl.create_default_context(cafile=str(authority))
    strict = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    if is_strict:
        client_context.verify_flags |= strict
    else:
        client_context.verify_flags &= ~strict
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up, server_hostname=name)
    server = server_context.wrap_bio(up, down, server_side=True)
    for _ in range(6):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.getpeercert()


def load(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def make_old_certificates(folder: Path) -> TlsFiles:
    """Make certificates like earlier versions: for ten years, without the later extensions."""
    tls = make_certificates(folder, [])
    authority_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    now = datetime.now(UTC)
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Samara run")])
    names = load(tls.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    for file, is_authority in ((tls.authority, True), (tls.certificate, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(authority_name if is_authority else load(file).subject)
            .issuer_name(authority_name)
            .public_key(load(file).public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            builder = builder.add_extension(names.value, critical=False)
        signed = builder.sign(authority_key, hashes.SHA256())  # type: ignore[arg-type]
        file.write_bytes(signed.public_bytes(Encoding.PEM))
    return tls


def test_a_strict_client_accepts_the_runs_certificate(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, ["server.example"])
    for name in ("127.0.0.1", "server.example"):
        accept(tls, tls.authority, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        accept(tls, tls.authority, "another.example")


def test_the_certificate_says_who_signed_it_and_what_it_is_for(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, [])
    authority, server = load(tls.authority), load(tls.certificate)
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = server.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    assert issuer.key_identifier == identifier.digest
    assert server.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    usage = server.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    signing = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (signing.digital_signature, signing.key_cert_sign) == (False, True)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    lifetime = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=364) < lifetime <= timedelta(days=365)
    assert authority.not_valid_after_utc > server.not_valid_after_utc
    for file in (tls.key, tmp_path / "ca.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(("age", "is_renewed"), [(300, False), (340, True), (400, True)])
def test_a_certificate_is_renewed_before_its_end_and_clients_keep_their_authority(
    age: int, is_renewed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Earlier(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) - timedelta(days=age)

    with monkeypatch.context() as patch:
        patch.setattr(module, "datetime", Earlier)
        tls = make_certificates(tmp_path, ["server.example"])
    copy = tmp_path / "the-clients-copy.pem"
    copy.write_bytes(tls.authority.read_bytes())
    first = load(tls.certificate)
    make_certificates(tmp_path, [])
    second = load(tls.certificate)
    assert (second != first) is is_renewed
    assert (second.public_key() != first.public_key()) is is_renewed
    assert tls.authority.read_bytes() == copy.read_bytes()
    for name in ("127.0.0.1", "server.example"):
        accept(tls, copy, name)


def test_a_renewal_on_request_keeps_authority_and_names(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, ["server.example"])
    copy = tmp_path / "the-clients-copy.pem"
    copy.write_bytes(tls.authority.read_bytes())
    first = load(tls.certificate)
    assert renew_certificate(tmp_path) == tls
    assert load(tls.certificate).public_key() != first.public_key()
    for name in ("127.0.0.1", "server.example"):
        accept(tls, copy, name)


def test_a_renewal_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, [])
    tls.key.write_bytes((tmp_path / "ca.key").read_bytes())  # a key of another certificate
    make_certificates(tmp_path, [])
    accept(tls, tls.authority)


@pytest.mark.parametrize("renew", [lambda folder: make_certificates(folder, []), renew_certificate])
def test_an_authority_of_an_earlier_version_keeps_its_key(
    renew: Callable[[Path], TlsFiles], tmp_path: Path
) -> None:
    tls = make_old_certificates(tmp_path)
    copy = tmp_path / "the-clients-copy.pem"
    copy.write_bytes(tls.authority.read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        accept(tls, tls.authority)
    renew(tmp_path)
    assert load(tls.authority).public_key() == load(copy).public_key()
    accept(tls, tls.authority)
    accept(tls, copy, is_strict=False)  # a client that was enrolled before


def test_the_authoritys_key_may_be_elsewhere_until_it_has_to_sign(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path, [])
    files = {file: file.read_bytes() for file in (tls.authority, tls.certificate, tls.key)}
    (tmp_path / "ca.key").unlink()
    make_certificates(tmp_path, [])
    with pytest.raises(SamaraError, match=r"ca.key: cannot be read.*restore the file"):
        make_certificates(tmp_path, ["another.example"])
    assert {file: file.read_bytes() for file in files} == files
