"""The certificate that an operator gives a server, instead of the one that Samara makes."""

from pathlib import Path

from shared.certificates import TlsFiles, certificate_names
from shared.errors import SamaraError


def check_certificates(certificate: Path, key: Path | None, authority: Path | None) -> TlsFiles:
    """Return the operator's certificate, its key and its authority, after checking them.

    Args:
        certificate: file of the server's certificate, PEM.
        key: file of the certificate's private key, PEM.
        authority: file that verifies the certificate, PEM; the certificate itself by default.

    Raises:
        SamaraError: if a file is missing, or the certificate is not for 127.0.0.1, by which the
            server's own processes connect to it.
    """
    if key is None:
        raise SamaraError("--cert needs --key, the certificate's private key")
    tls = TlsFiles(certificate.resolve(), key.resolve(), (authority or certificate).resolve())
    for file in (tls.certificate, tls.key, tls.authority):
        if not file.is_file():
            raise SamaraError(f"{file}: no such file")
    if "127.0.0.1" not in certificate_names(tls.certificate):
        raise SamaraError(
            f"{certificate}: is not for 127.0.0.1, by which the server's own processes connect to "
            "it; add IP:127.0.0.1 to its subject alternative names, or leave --cert out"
        )
    return tls
