"""Joining a run by an invitation. The key is created on this device; only its public half is sent.

CLIENT/own.key        the private key, created at the first try and reused after that
CLIENT/ca.pem         the authority that verifies the server
CLIENT/scenarios/     the operator's signed scenario, if the invitation has one
CLIENT/gateway.pem    the authority that verifies the gateway, if the invitation has a gateway
CLIENT/joined.json    addresses of the server and of the gateway; written last
"""

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.client.trainer.trainer_socket import address_of
from samara.devices.live.client_folder import (
    JOINED_FILE,
    SOCKET,
    UP_LOCK,
    check_is_no_phones,
    check_not_moved,
)
from samara.devices.live.connection.certificate_errors import explain_certificate_error
from samara.devices.live.connection.tls_contexts import invited_context, unverified_context
from samara.devices.live.keys import OWN_KEY_FILE, create_key, read_client_index
from samara.devices.live.local_trainer import ANOTHER_SERVES
from samara.devices.live.processes import exclusive_lock
from samara.shared.errors import DeviceError, InvitationError
from samara.shared.network.addresses import parse_address
from samara.shared.network.invitation import (
    JOIN_PATH,
    MAX_WELCOME_BYTES,
    InvitationCode,
    JoinRequest,
    Welcome,
    join_proof,
)
from samara.shared.network.proxies import remark_on_proxy
from samara.shared.protocol.signing import SigningKey
from samara.shared.storage.files import make_private_folder, write_durably
from samara.shared.storage.kept_file import KeptFile
from samara.shared.terms.signed_scenario import SignedScenario

AUTHORITY_FILE = "ca.pem"
"""File with the server's certificate authority, in the folder of a client that has joined."""
GATEWAY_AUTHORITY_FILE = "gateway.pem"
"""Name of the file with the gateway's certificate authority."""
_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
"""Pattern of names that are safe in a command for the owner: no absolute paths, no options."""
_LONGEST_NAME = 128
JoinedPlace = Literal["superlink", "gateway"]
"""Key of an address in the file about a joined run: the server's or the gateway's address."""
_SECONDS = 20.0
_REASONS = {
    400: "the server does not understand this version's request; install the server's version",
    403: "the key that was registered by this invitation was revoked; ask for another invitation, "
    "with another name",
    404: "the server has no such invitation (any more); ask for another invitation",
    409: "the invitation was used with another key. If you did not use it, ask the operator to "
    "revoke it with `samara server invite NAME --revoke`",
    410: "the invitation has ended; ask for another invitation",
    422: "another client of the run has this key, or a key with the same client index; delete "
    "{key}, and run the same command again",
    429: "the server gets too many requests from this address; try again in a minute",
}


class JoinedFile(KeptFile[Mapping[JoinedPlace, str] | None]):
    """The file with the addresses (host:port) of a joined run, by `JoinedPlace`.

    The content is None if the client never joined.

    Args:
        folder: folder of the client.
        place: key of the address that must be present.
    """

    name = JOINED_FILE
    damaged = "{file}: the file is damaged: {problem}; delete it and join again"
    error = DeviceError
    style: ClassVar = {}

    def __init__(self, folder: Path, place: JoinedPlace) -> None:
        super().__init__(folder)
        self._place = place

    def _parse(self, value: Any) -> Mapping[JoinedPlace, str]:
        _ = value[self._place]
        for place, address in value.items():
            parse_address(address, place)
        return dict(value)


class JoinedServer(NamedTuple):
    """The server that a client has joined by an invitation.

    Attributes:
        superlink: address of the server, host:port.
        key: private key file of the client.
        certificates: PEM file of the server's certificate authority.
        gateway: address of the gateway to attach to, host:port; empty if there is none.
        gateway_authority: PEM file of the gateway's certificate authority.
    """

    superlink: str
    key: Path
    certificates: Path
    gateway: str
    gateway_authority: Path


class Joined(NamedTuple):
    """The result of joining a run.

    Attributes:
        lines: sentences about the client for its owner.
        names: the server's names of the run's ``task`` and ``model``. Missing or invalid names are
            left out.
    """

    lines: list[str]
    names: Mapping[str, str]


def join_run(address: str, code: InvitationCode, folder: Path) -> Joined:
    """Register this device's key at a server, and store the certificates of the invitation.

    After an interruption, the same call continues with the same key.

    Args:
        address: address of the server, host:port.
        code: code of the invitation.
        folder: folder of the client; created if missing.

    Returns:
        Sentences for the owner, and the run's names.

    Raises:
        SamaraError: if the folder cannot be used, the server does not match the invitation, or the
            server refuses.
    """
    parse_address(address, "the server's address")
    address_of(folder / SOCKET)  # reject too long a path before a key is created there
    check_is_no_phones(folder)
    with locked_folder(folder, UP_LOCK, ANOTHER_SERVES):
        check_not_moved(folder)
        create_key(folder / OWN_KEY_FILE)
        welcome = fetch_welcome(address, code)
        if welcome.phone:
            raise InvitationError(
                "the invitation is for a phone; run its command, `samara phone join …`, there"
            )
        joined = register(address, code, welcome, folder)
        write_durably(folder / AUTHORITY_FILE, welcome.authority.encode())
        places: dict[JoinedPlace, str] = {"superlink": address}
        if board := welcome.board:
            parse_address(board.gateway, "the gateway's address")
            write_durably(folder / GATEWAY_AUTHORITY_FILE, board.gateway_authority.encode())
            places["gateway"] = board.gateway
        JoinedFile(folder, "superlink").write(places)
    return joined


def read_joined_server(folder: Path) -> JoinedServer | None:
    """Return the server that a client has joined; None if it never joined by an invitation.

    Raises:
        DeviceError: if the file that describes the server is damaged.
    """
    if (joined := JoinedFile(folder, "superlink").read()) is None:
        return None
    own = folder / OWN_KEY_FILE, folder / AUTHORITY_FILE
    gateway_authority = folder / GATEWAY_AUTHORITY_FILE
    return JoinedServer(joined["superlink"], *own, joined.get("gateway", ""), gateway_authority)


@contextmanager
def locked_folder(folder: Path, lock: str, in_use: str) -> Iterator[None]:
    """Create the folder of a joining client, accessible to its owner only, and hold its lock.

    Args:
        folder: folder of the client.
        lock: name of its lock file.
        in_use: message if another process holds the lock.

    Raises:
        DeviceError: if another process holds the lock, or the folder cannot be used.
    """
    try:
        make_private_folder(folder)
        with exclusive_lock(folder / lock, in_use):
            yield
    except OSError as error:
        raise DeviceError(
            f"{folder}: the client's folder cannot be used: {error.strerror}; give another --home"
        ) from error


def fetch_welcome(address: str, code: InvitationCode) -> Welcome:
    """Fetch an invitation's welcome from an unverified server, and verify it by the code.

    Raises:
        InvitationError: if the server has no such invitation, or the answer does not match the
            invitation.
    """
    path = f"{JOIN_PATH}/{code.identifier}"
    status, body = _request(address, unverified_context(), "GET", path)
    if status != 200:
        raise InvitationError(_reason(status))
    return Welcome.decode(body, code.trusted)


def register(address: str, code: InvitationCode, welcome: Welcome, folder: Path) -> Joined:
    """Register the key in a client's folder, and store the operator's scenario.

    Args:
        address: address of the server, host:port.
        code: code of the invitation.
        welcome: welcome of the invitation, as returned by `fetch_welcome`.
        folder: folder of the client, with its key.

    Returns:
        Sentences for the owner, and the run's names.

    Raises:
        SamaraError: if the scenario is invalid, or the server is not verified or refuses.
        OSError: if the scenario cannot be written.
    """
    key = folder / OWN_KEY_FILE
    scenario = SignedScenario.decode(welcome.scenario.encode()) if welcome.scenario else None
    names = _send_key(address, code, welcome.authority, key)
    by_gateway = welcome.phone or welcome.board
    way = f", by {by_gateway.gateway}" if by_gateway else ""
    lines = [f"client {read_client_index(key)} of {address}{way}"]
    if scenario:
        ScenarioFolder(folder).add(scenario)
        lines += scenario.describe()
    return Joined(lines, names)


def _send_key(address: str, code: InvitationCode, authority: str, key: Path) -> dict[str, str]:
    """Send the public key to the server, verified by the invitation's certificate authority.

    Returns:
        The server's names of the run's task and model.

    Raises:
        InvitationError: if the server is not verified, or refuses.
    """
    signing = SigningKey(key)
    signature = signing.sign(join_proof(code.secret))
    request = JoinRequest(code.secret, signing.public, signature)
    context = invited_context(authority)
    status, answer = _request(address, context, "POST", JOIN_PATH, request.encode())
    if status != 200:
        raise InvitationError(_reason(status, key))
    return _read_names(answer)


def _read_names(answer: bytes) -> dict[str, str]:
    """Return the names of task and model from a server's answer."""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    names = {key: said.get(key) for key in ("task", "model")} if isinstance(said, dict) else {}
    return {
        key: name
        for key, name in names.items()
        if isinstance(name, str) and len(name) <= _LONGEST_NAME and _NAMES.fullmatch(name)
    }


def _request(
    address: str, context: ssl.SSLContext, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return the status and body of a server's answer.

    Raises:
        InvitationError: if the server does not answer, is not verified, or the answer is too long.
    """
    host, port = parse_address(address)
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        answer = response.read(MAX_WELCOME_BYTES + 1)
    except ssl.SSLCertVerificationError as error:
        usual = "check the address, or ask for another invitation"
        finding, remedy = explain_certificate_error(error, usual)
        raise InvitationError(
            f"{host} is not verified by the authority of the invitation: {finding}. Nothing was "
            f"sent to this server; {remedy}"
        ) from error
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        raise InvitationError(
            f"no answer by TLS from {host}:{port}: {error or type(error).__name__}; check address, "
            f"port and firewall, and that the server is up{remark_on_proxy()}"
        ) from error
    finally:
        connection.close()
    if len(answer) > MAX_WELCOME_BYTES:
        raise InvitationError(
            f"{host}:{port}: the answer is longer than an invitation; check the address"
        )
    return response.status, answer


def _reason(status: int, key: Path | str = OWN_KEY_FILE) -> str:
    reason = _REASONS.get(
        status,
        f"the server answered with status {status}; ask the operator to read the server's log",
    )
    return reason.format(key=key)
