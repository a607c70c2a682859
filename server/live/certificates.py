"""The certificate that an operator brings to a server."""

from pathlib import Path

from shared.certificates import TlsFiles, certificate_names
from shared.errors import SamaraError


def given_certificates(certificate: Path, key: Path | None, authority: Path | None) -> TlsFiles:
    """The certificate that an operator brings.

    Raises:
        SamaraError: if a file is missing, or the certificate is not for 127.0.0.1, by which the
            server's own processes reach it.
    """
    if key is None:
        raise SamaraError("--cert needs --key, the certificate's private key")
    tls = TlsFiles(certificate.resolve(), key.resolve(), (authority or certificate).resolve())
    for file in (tls.certificate, tls.key, tls.authority):
        if not file.is_file():
            raise SamaraError(f"{file}: there is no such file")
    if "127.0.0.1" not in certificate_names(tls.certificate):
        raise SamaraError(
            f"{certificate}: is not for 127.0.0.1, by which the server's own processes reach it; "
            "add IP:127.0.0.1 to its subject alternative names, or leave --cert out"
        )
    return tls
