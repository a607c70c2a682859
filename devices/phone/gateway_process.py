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

from samara.devices.live.executor import Executor
from samara.devices.live.flower_wire import supernode_command
from samara.devices.live.keys import read_client_index
from samara.devices.live.processes import (
    SupervisedProcess,
    check_not_revoked,
    child_environment,
    describe_exit,
    exclusive_lock,
    is_run_finished,
)
from samara.devices.live.supernode import FOR_GATEWAY
from samara.devices.live.tls_contexts import verifying_context
from samara.devices.phone.admitted_keys import AdmittedKeys
from samara.devices.phone.gateway import Gateway
from samara.devices.phone.gateway_certificate import GatewayCertificate
from samara.devices.phone.gateway_server import start_gateway
from samara.devices.phone.gateway_settings import GatewaySettings
from samara.devices.phone.registered_keys import RegisteredKeys
from samara.devices.phone.relay import gateway_app
from samara.devices.phone.server_requests import ServerRequests
from samara.shared.certificates import CERTIFICATES_FOLDER
from samara.shared.client_index import client_index_of_key
from samara.shared.errors import DeviceError
from samara.shared.files import make_private_folder, write_secret
from samara.shared.flower_compat import fetch_messages_quickly, transfer_parts_together
from samara.shared.proxies import DIRECT

if TYPE_CHECKING:
    from samara.devices.phone.page_server.listening import PageServer

log = logging.getLogger("samara.gateway")

MOST_MESSAGES = 32
"""Most messages that are passed on at once; of a round there is one, or one for each cluster."""
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 5.0
_FAREWELL_SECONDS = 60.0
"""Longest time in which phones that are away may come back and hear that the run is finished."""


def up(settings: GatewaySettings) -> None:
    """Serve phones until the run is finished, or SIGINT or SIGTERM.

    Raises:
        DeviceError: if a file, the port or the folder cannot be used.
    """
    try:
        make_private_folder(settings.folder)
    except OSError as error:
        raise DeviceError(f"{settings.folder}: cannot be used: {error.strerror}") from error
    _check_superlink_settings(settings)
    if settings.web:
        settings.web.check()
    if settings.phones and not settings.phones.is_dir():
        raise DeviceError(f"{settings.phones}: no such folder; put the phones' public keys there")
    with exclusive_lock(settings.folder / "gateway.lock", "another `samara gateway up` is running"):
        secret = settings.folder / "executor.secret"
        write_secret(secret, secrets.token_hex(32).encode())
        try:
            _serve(settings, secret)
        finally:
            secret.unlink(missing_ok=True)


def _check_superlink_settings(settings: GatewaySettings) -> None:
    """Check the files that Flower's SuperNode needs, which would otherwise fail repeatedly."""
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
    stop, runtime = threading.Event(), ""
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
    admitted, registered = AdmittedKeys(settings.phones or settings.folder / "phones"), None
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
                log.info("the run is finished; telling the phones, which keep its model")
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
    """Logs how many phones and boards are attached whenever that changes."""

    def __init__(self) -> None:
        self._phones, self._boards = -1, 0

    def show(self, gateway: Gateway) -> None:
        boards = len(gateway.clients_of(with_phones=False))
        phones = len(gateway.attached_phones) - boards
        if phones != self._phones:
            log.info("%d phones attached", phones)
        if boards != self._boards:
            log.info("%d boards attached", boards)
        self._phones, self._boards = phones, boards


def _page_server(
    settings: GatewaySettings, gateway: Gateway, asked: ServerRequests | None
) -> "PageServer | None":
    """Return what serves browsers, not started yet; None if nothing is to."""
    if (web := settings.web) is None:
        return None
    from samara.devices.phone.page_server.join_relay import JoinRelay
    from samara.devices.phone.page_server.listening import PageServer
    from samara.devices.phone.page_server.page_app import PageApp
    from samara.devices.phone.page_server.published_files import page_files, program_files

    files = page_files(web.page_folder) | program_files(web.program)
    app = PageApp(gateway, files, JoinRelay(asked, gateway.lines), web.origin)
    if web.has_tls and settings.certificate and settings.certificate_key:
        return PageServer(app, settings.certificate, settings.certificate_key)
    return PageServer(app)


def _await_phones(gateway: Gateway, admitted: AdmittedKeys, stop: threading.Event) -> None:
    """Wait until all phones have heard that the run is finished, those that are away for a time."""
    end = time.monotonic() + _FAREWELL_SECONDS
    while time.monotonic() < end and not stop.wait(_POLL_SECONDS):
        if {client_index_of_key(key) for key in admitted.read()} <= gateway.told:
            break
    log.info("%d phones have heard it", len(gateway.told))
