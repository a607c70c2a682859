"""The process of `samara gateway up`: the gateway, Flower's SuperNode and the executor."""

import asyncio
import logging
import resource
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samara.devices.gateway.admitted_keys import AdmittedKeys
from samara.devices.gateway.certificate import GatewayCertificate
from samara.devices.gateway.gateway import Gateway
from samara.devices.gateway.registered_keys import RegisteredKeys
from samara.devices.gateway.relay import gateway_app
from samara.devices.gateway.server import start_gateway
from samara.devices.gateway.server_requests import ServerRequests
from samara.devices.gateway.settings import GatewaySettings
from samara.devices.live.connection.executor import Executor
from samara.devices.live.connection.flower_wire import supernode_command
from samara.devices.live.connection.supernode import FOR_GATEWAY
from samara.devices.live.connection.tls_contexts import verifying_context
from samara.devices.live.keys import read_client_index
from samara.devices.live.processes import (
    SupervisedProcess,
    check_not_revoked,
    child_environment,
    describe_exit,
    exclusive_lock,
    is_run_finished,
)
from samara.shared.errors import DeviceError
from samara.shared.flower_compat import fetch_messages_quickly, transfer_parts_together
from samara.shared.network.certificates import CERTIFICATES_FOLDER
from samara.shared.network.proxies import DIRECT
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.storage.files import make_private_folder, write_secret

if TYPE_CHECKING:
    from samara.devices.gateway.page_server.listening import PageServer

log = logging.getLogger("samara.gateway")

MOST_MESSAGES = 32
"""Maximum number of messages passed on at once; a round has one message, or one per cluster."""
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0
_FAREWELL_SECONDS = 60.0
"""Seconds for which the gateway waits for absent phones, to inform them of the run's end."""


def up(settings: GatewaySettings) -> None:
    """Serve phones until the run finishes or SIGINT or SIGTERM arrives.

    Raises:
        DeviceError: if a file, the port or the folder cannot be used.
    """
    try:
        make_private_folder(settings.folder)
    except OSError as error:
        raise DeviceError(
            f"{settings.folder}: the gateway's folder cannot be used: "
            f"{error.strerror}; give another --home"
        ) from error
    _check_superlink_settings(settings)
    if settings.web:
        settings.web.check()
    if settings.phones and not settings.phones.is_dir():
        raise DeviceError(
            f"{settings.phones}: this folder does not exist; create it and put the "
            f"phones' public keys there"
        )
    with exclusive_lock(settings.folder / "gateway.lock", "another `samara gateway up` is running"):
        secret = settings.folder / "executor.secret"
        write_secret(secret, secrets.token_hex(32).encode())
        try:
            _serve(settings, secret)
        finally:
            secret.unlink(missing_ok=True)


def _check_superlink_settings(settings: GatewaySettings) -> None:
    """Check the files that Flower's SuperNode needs.

    Without these files the SuperNode would fail again and again.
    """
    if settings.key:
        read_client_index(settings.key)
    verifying_context(settings.certificates)


def _serve(settings: GatewaySettings, secret: Path) -> None:
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    certificate = GatewayCertificate(settings)
    if not settings.insecure and settings.certificate is None:
        authority = settings.folder / CERTIFICATES_FOLDER / "ca.pem"
        log.info("phones verify this gateway with --certs %s", authority)
    stop = threading.Event()
    runtime = ""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()

    def command() -> list[str]:
        nonlocal runtime
        place = {"gateway": settings.listen}
        arguments, runtime = supernode_command(settings, secret, place, [FOR_GATEWAY])
        return arguments

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    asked = None
    if not settings.insecure:
        asked = ServerRequests(settings.superlink, settings.certificates)
    admitted = AdmittedKeys(settings.phones or settings.folder / "phones")
    registered = None
    if settings.phones is None and asked:
        registered = RegisteredKeys(admitted, asked)
    gateway = Gateway(admitted, registered, settings.folder)
    pages = _page_server(settings, gateway, asked)
    current = certificate.current
    server = run(start_gateway(gateway, settings.listen, *current, lambda: certificate.current))
    log.info("phones attach at port %d", server.port)
    if pages and settings.web:
        run(pages.start(settings.web.address))
        log.info("browsers open %s", settings.web.url)
    fetch_messages_quickly()
    transfer_parts_together()
    executor = Executor(gateway_app(gateway, loop), secret.read_bytes(), MOST_MESSAGES)
    answering = threading.Thread(
        target=executor.run, args=(lambda: runtime, stop), name="executor", daemon=True
    )
    supernode = SupervisedProcess(
        "the SuperNode", command, child_environment() | DIRECT, explain=describe_exit
    )
    attached = _AttachedLog()
    try:
        supernode.start()
        answering.start()
        while not stop.wait(_POLL_SECONDS):
            check_not_revoked(supernode)
            if is_run_finished(supernode):
                log.info(
                    "the run is finished; the gateway informs the phones, which keep the "
                    "run's model"
                )
                run(gateway.finish())
                _await_phones(gateway, admitted, stop)
                break
            if message := supernode.restart_if_due():
                log.warning("%s", message)
            if certificate.renew_if_due() and pages:
                pages.renew_certificate()
            attached.show(gateway)
    finally:
        log.info("stopping")
        stop.set()
        supernode.terminate()
        supernode.end()
        if pages:
            run(pages.stop())
        run(server.stop(_GRACE_SECONDS))
        gateway.lines.close()
        loop.call_soon_threadsafe(loop.stop)


class _AttachedLog:
    """Logs the number of attached phones and boards whenever it changes."""

    def __init__(self) -> None:
        self._phones = -1
        self._boards = 0

    def show(self, gateway: Gateway) -> None:
        boards = len(gateway.clients_of(with_phones=False))
        phones = len(gateway.attached_phones) - boards
        if phones != self._phones:
            log.info("%d phones attached", phones)
        if boards != self._boards:
            log.info("%d boards attached", boards)
        self._phones = phones
        self._boards = boards


def _page_server(
    settings: GatewaySettings, gateway: Gateway, asked: ServerRequests | None
) -> "PageServer | None":
    """Return the unstarted server for browsers; None if browsers are not served."""
    if (web := settings.web) is None:
        return None
    from samara.devices.gateway.page_server.join_relay import JoinRelay
    from samara.devices.gateway.page_server.listening import PageServer
    from samara.devices.gateway.page_server.page_app import PageApp
    from samara.devices.gateway.page_server.published_files import page_files, program_files

    files = page_files(web.page_folder) | program_files(web.program)
    app = PageApp(gateway, files, JoinRelay(asked, gateway.lines), web.origin)
    if web.has_tls and settings.certificate and settings.certificate_key:
        return PageServer(app, settings.certificate, settings.certificate_key)
    return PageServer(app)


def _await_phones(gateway: Gateway, admitted: AdmittedKeys, stop: threading.Event) -> None:
    """Wait until all phones know that the run is finished, but at most a minute."""
    end = time.monotonic() + _FAREWELL_SECONDS
    while time.monotonic() < end and not stop.wait(_POLL_SECONDS):
        if {client_index_of_key(key) for key in admitted.read()} <= gateway.told:
            break
    log.info("%d phones know that the run is finished", len(gateway.told))
