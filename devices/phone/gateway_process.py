"""`samara gateway up`: the gateway, Flower's SuperNode, and what connects the two."""

import asyncio
import logging
import os
import secrets
import signal
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from devices.live.bundle_check import check_bundle
from devices.live.client_supervisor import REJECTION_HINT, child_environment, supernode_command
from devices.live.executor import Executor
from devices.live.keys import read_client_index
from devices.live.processes import SupervisedProcess, exclusive_lock
from devices.phone.gateway import Gateway, start_gateway
from devices.phone.relay import gateway_app
from shared.certificates import CERTIFICATES_FOLDER, make_certificates
from shared.errors import DeviceError
from shared.files import make_folder, write_durably
from shared.signing import normalize_public_key

log = logging.getLogger("samara.gateway")

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class GatewaySettings:
    """What ``samara gateway up`` was told.

    Attributes:
        folder: where it keeps its secret and lock.
        phones: folder with the public keys (PEM) that are admitted.
        listen: host:port for phones.
        certificate: PEM chain for phones; none makes its own.
        certificate_key: its private key.
        names: host names and addresses that phones use, for its own certificate.
        superlink: host:port of the server.
        key: the gateway's own, for the SuperLink.
        certificates: CA certificate of the SuperLink.
        insecure: plain text on both sides.
        trusted: bundles that are accepted besides the installed code.
    """

    folder: Path
    phones: Path
    listen: str
    certificate: Path | None
    certificate_key: Path | None
    names: tuple[str, ...]
    superlink: str
    key: Path | None
    certificates: Path | None
    insecure: bool
    trusted: tuple[str, ...] = ()


class AdmittedKeys:
    """Who may attach: the keys in a folder, read anew whenever a file of it has changed.

    Args:
        folder: of ``*.pem`` files with a public key each.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[tuple[str, int, int]] = set()
        self._keys: set[bytes] = set()

    def __call__(self, public_key: bytes) -> bool:
        """Whether this key (PEM) is there."""
        if self._seen != (seen := self._stamps()):
            self._seen, self._keys = seen, set(_read(path for path, _, _ in seen))
        return public_key in self._keys

    def _stamps(self) -> set[tuple[str, int, int]]:
        """Path, time of change in nanoseconds and size of each file."""
        found = set()
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".pem"):
                    with suppress(FileNotFoundError):  # it has just gone
                        stat = entry.stat()
                        found.add((entry.path, stat.st_mtime_ns, stat.st_size))
        return found


def _read(files: Iterable[str]) -> Iterator[bytes]:
    """The keys in files; one that is damaged is said and passed over."""
    for file in files:
        try:
            yield normalize_public_key(Path(file).read_bytes())
        except (OSError, DeviceError) as error:
            log.warning("%s: %s", file, error)


def up(settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        DeviceError: if a file, the port or the folder cannot be used.
    """
    try:
        make_folder(settings.folder)
        settings.folder.chmod(0o700)
    except OSError as error:
        raise DeviceError(f"{settings.folder}: cannot be used: {error.strerror}") from error
    _check_node(settings)
    if not settings.phones.is_dir():
        raise DeviceError(f"{settings.phones}: no folder; put the phones' public keys there")
    with exclusive_lock(settings.folder / "gateway.lock", "another `samara gateway up` is running"):
        secret = settings.folder / "executor.secret"
        write_durably(secret, secrets.token_hex(32).encode())
        try:
            _serve(settings, secret)
        finally:
            secret.unlink(missing_ok=True)


def _check_node(settings: GatewaySettings) -> None:
    """What Flower's SuperNode would only fail at, again and again."""
    if settings.key:
        read_client_index(settings.key)
    try:
        ssl.create_default_context(cafile=settings.certificates)
    except OSError as error:  # ssl.SSLError is one
        raise DeviceError(
            f"{settings.certificates}: not a certificate (PEM) that can be read: {error}"
        ) from error


def _certificate(settings: GatewaySettings) -> tuple[bytes, bytes]:
    """What phones know the gateway by, and its private key, PEM; empty for plain text."""
    if settings.insecure:
        return b"", b""
    certificate, key = settings.certificate, settings.certificate_key
    if certificate is None:
        tls = make_certificates(settings.folder / CERTIFICATES_FOLDER, settings.names)
        log.info("phones verify this gateway with %s", tls.authority)
        certificate, key = tls.certificate, tls.key
    if key is None:
        raise DeviceError("--cert needs --cert-key, the certificate's private key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        return certificate.read_bytes(), key.read_bytes()
    except FileNotFoundError as error:
        raise DeviceError(f"{certificate} or {key}: {error.strerror}") from error
    except (OSError, ssl.SSLError) as error:
        raise DeviceError(
            f"{certificate} and {key}: not a certificate and its private key without passphrase, "
            f"in PEM: {error}"
        ) from error


def _serve(settings: GatewaySettings, secret: Path) -> None:
    certificate, key = _certificate(settings)
    stop, runtime = threading.Event(), ""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()

    def command() -> list[str]:
        nonlocal runtime
        words, runtime = supernode_command(settings, secret, {"gateway": settings.listen})
        return words

    def done(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    gateway = Gateway(AdmittedKeys(settings.phones))
    server, port = done(start_gateway(gateway, settings.listen, certificate, key))
    log.info("phones attach at port %d", port)
    check = partial(check_bundle, trusted=settings.trusted)
    executor = Executor(gateway_app(gateway, loop), check, secret.read_bytes())
    answering = threading.Thread(
        target=executor.run, args=(lambda: runtime, stop), name="executor", daemon=True
    )
    supernode = SupervisedProcess(
        "the SuperNode", command, child_environment(), hint=REJECTION_HINT
    )
    try:
        supernode.start()
        answering.start()
        seen = -1
        while not stop.wait(_POLL_SECONDS):
            if news := supernode.restart_if_due():
                log.warning("%s", news)
            if seen != (seen := len(gateway.attached_phones)):
                log.info("%d phones attached", seen)
    finally:
        log.info("ending")
        stop.set()
        supernode.terminate()
        supernode.end()
        done(server.stop(_GRACE_SECONDS))
        loop.call_soon_threadsafe(loop.stop)
