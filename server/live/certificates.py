"""The certificates of a server: an operator's own, and what clients need of one."""

import socket
from pathlib import Path

from samara.shared.addresses import parse_address
from samara.shared.certificates import TlsFiles, certificate_names, given_names, tls_files
from samara.shared.errors import SamaraError


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
    given = {"--cert": tls.certificate, "--key": tls.key, "--ca": tls.authority}
    for option, file in given.items():
        if not file.is_file():
            raise SamaraError(
                f"{option} {file}: no such file; correct the path, or leave --cert, --key and --ca "
                "out, and the run makes its own"
            )
    if "127.0.0.1" not in certificate_names(tls.certificate):
        raise SamaraError(
            f"{certificate}: is not for 127.0.0.1, by which the server's own processes connect to "
            "it; add IP:127.0.0.1 to its subject alternative names, or leave --cert out"
        )
    return tls


def server_address(folder: Path, port: int, address: str = "") -> tuple[Path, str]:
    """Return a server's authority, and the address by which its clients reach it.

    Args:
        folder: folder of the certificates that Samara made for the server.
        port: port that the server listens on.
        address: host:port; empty for the name that the server was given, and `port`.

    Raises:
        SamaraError: if there is no certificate yet, it is not for this address, or it has several
            names of which one has to be chosen.
    """
    tls = tls_files(folder)
    if not tls.certificate.exists():
        raise SamaraError(
            f"{tls.certificate}: is not made yet; start `samara server up` first, with --name HOST "
            "for the name by which clients reach it"
        )
    names = certificate_names(tls.certificate)
    if not address:
        given = given_names(folder)
        if len(given) > 1:
            raise SamaraError(
                f"the server has the names {', '.join(given)}; say which with --address HOST:PORT"
            )
        host = given[0] if given else socket.gethostname()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    host, _ = parse_address(address, "--address")
    if host not in names:
        raise SamaraError(
            f"the server's certificate is for {', '.join(sorted(names))} and not for {host}: start "
            f"`samara server up` with --name {host}, or give another --address"
        )
    return tls.authority, address
