"""Checks of the operator's certificate, and the certificate data that clients need."""

import socket
from pathlib import Path

from samara.shared.errors import SamaraError
from samara.shared.network.addresses import parse_address
from samara.shared.network.certificates import TlsFiles, certificate_names, given_names, tls_files


def check_certificates(certificate: Path, key: Path | None, authority: Path | None) -> TlsFiles:
    """Check the operator's certificate, its key and its authority; return their files.

    Args:
        certificate: file of the server's certificate, PEM.
        key: file of the certificate's private key, PEM.
        authority: file of the authority that verifies the certificate, PEM; by default the
            certificate itself.

    Raises:
        SamaraError: if a file is missing, or the certificate is not valid for 127.0.0.1, through
            which the server's own processes connect.
    """
    if key is None:
        raise SamaraError("--cert: its private key is missing; name the key's file with --key")
    tls = TlsFiles(certificate.resolve(), key.resolve(), (authority or certificate).resolve())
    given = {"--cert": tls.certificate, "--key": tls.key, "--ca": tls.authority}
    for option, file in given.items():
        if not file.is_file():
            raise SamaraError(
                f"{option} {file}: no such file; correct the path, or leave out --cert, --key and "
                "--ca, so that Samara makes a certificate"
            )
    if "127.0.0.1" not in certificate_names(tls.certificate):
        raise SamaraError(
            f"{certificate}: is not valid for 127.0.0.1, through which the server's own processes "
            "connect; add IP:127.0.0.1 to its subject alternative names, or leave --cert out"
        )
    return tls


def server_address(folder: Path, port: int, address: str = "") -> tuple[Path, str]:
    """Return the CA certificate file of a server, and the address to which its clients connect.

    Args:
        folder: folder of the certificates that Samara made for the server.
        port: port that the server listens on.
        address: host:port; empty for the name in the certificate, with `port`.

    Raises:
        SamaraError: if there is no certificate yet, the certificate is not valid for this address,
            or the certificate has several names and no address was given.
    """
    tls = tls_files(folder)
    if not tls.certificate.exists():
        raise SamaraError(
            f"{tls.certificate}: does not exist yet; first start `samara server up` with --name "
            "HOST, the name or address with which clients connect"
        )
    names = certificate_names(tls.certificate)
    if not address:
        given = given_names(folder)
        if len(given) > 1:
            raise SamaraError(
                f"the server has the names {', '.join(given)}; choose one with --address HOST:PORT"
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
