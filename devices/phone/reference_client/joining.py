"""Joining a run by a phone's invitation: nothing is copied by hand.

HOME/own.key       the private key, made at the first try; only its public half leaves
HOME/scenarios/    the operator's signed scenario, if the invitation has one
HOME/model.pte     the program, and model.json its manifest, with the hashes of the invitation
HOME/gateway.pem   the authority that verifies the gateway
HOME/joined.json   address of the gateway; written last
"""

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from client.protocol.scenario_folder import ScenarioFolder
from devices.live.join import JOINED_FILE, fetch_welcome, register, trusting
from devices.live.keys import OWN_KEY_FILE, create_key, read_client_index
from devices.live.processes import exclusive_lock
from devices.phone.manifest import MAX_MANIFEST_BYTES, manifest_file
from shared.addresses import parse_address
from shared.blob_store import blob_hash
from shared.errors import ConfigError, DeviceError, InvitationError
from shared.files import UNFINISHED, make_private_folder, sync_folder, write_durably
from shared.invitation import JOIN_PATH, InvitationCode
from shared.signed_scenario import SignedScenario

PROGRAM_FILE, AUTHORITY_FILE = "model.pte", "gateway.pem"
LOCK, IN_USE = "phone.lock", "another `samara phone up` uses this folder"
MAX_PROGRAM_BYTES = 2**36
_PIECE_BYTES = 2**18
_SECONDS = 60.0


class JoinedGateway(NamedTuple):
    """The gateway and the files of a phone that has joined by an invitation.

    Attributes:
        gateway: address of the gateway, host:port.
        authority: certificate that verifies it, PEM.
        key: private key file of the phone.
        program: program, with its manifest beside it.
    """

    gateway: str
    authority: Path
    key: Path
    program: Path


def join_run(address: str, code: InvitationCode, home: Path) -> list[str]:
    """Register this phone's own key, and fetch program and gateway of the invitation.

    The same call goes on after an interruption at any point, with the same key.

    Args:
        address: server, host:port.
        code: code of the invitation.
        home: folder of the phone; made if it is missing.

    Returns:
        Sentences about the phone for its owner.

    Raises:
        SamaraError: if the folder cannot be used, the server is not that of the invitation, or it
            refuses or sends something else.
    """
    host, port = parse_address(address, "the server's address")
    key, program = home / OWN_KEY_FILE, home / PROGRAM_FILE
    try:
        make_private_folder(home)
        with exclusive_lock(home / LOCK, IN_USE):
            create_key(key)
            welcome = fetch_welcome(host, port, code)
            if (phone := welcome.phone) is None:
                raise InvitationError(
                    "the invitation is not a phone's; use `samara client join`, as its line says"
                )
            parse_address(phone.gateway, "the gateway's address")
            scenario = (
                SignedScenario.decode(welcome.scenario.encode()) if welcome.scenario else None
            )
            register(host, port, welcome, code, key)
            lines = [f"client {read_client_index(key)} of {address}, by {phone.gateway}"]
            if scenario:
                ScenarioFolder(home).add(scenario)
                lines += scenario.describe()
            for file, digest, most in (
                (program, phone.program, MAX_PROGRAM_BYTES),
                (manifest_file(program), phone.manifest, MAX_MANIFEST_BYTES),
            ):
                source = _Source(host, port, welcome.authority, f"{code.identifier}/{digest}")
                _download(source, file, digest, most)
            write_durably(home / AUTHORITY_FILE, phone.gateway_authority.encode())
            write_durably(home / JOINED_FILE, json.dumps({"gateway": phone.gateway}).encode())
    except OSError as error:
        raise DeviceError(f"{home}: cannot be used: {error.strerror}; set --home") from error
    return lines


def read_joined_gateway(home: Path) -> JoinedGateway | None:
    """Return the gateway and program of a phone; None if it never joined by an invitation.

    Raises:
        DeviceError: if the file about it is damaged.
    """
    file = home / JOINED_FILE
    try:
        gateway = json.loads(file.read_bytes())["gateway"]
        parse_address(gateway)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise DeviceError(f"{file}: damaged; delete it and join again") from error
    return JoinedGateway(gateway, home / AUTHORITY_FILE, home / OWN_KEY_FILE, home / PROGRAM_FILE)


class _Source(NamedTuple):
    """The place of a file of an invitation: host, port, PEM of its authority, and name."""

    host: str
    port: int
    authority: str
    name: str


def _download(source: _Source, file: Path, digest: str, most: int) -> None:
    """Fetch a file, from where an earlier try has ended, unless it is there.

    Raises:
        InvitationError: if it does not come, is not that of the invitation, or too large.
        OSError: if it cannot be written.
    """
    if file.exists() and blob_hash(file).hex() == digest:
        return
    part = file.with_name(file.name + UNFINISHED)
    with part.open("ab") as out:
        for offset, piece in _pieces(source, out.tell(), most):
            out.truncate(offset)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    if blob_hash(part).hex() != digest:
        part.unlink()
        raise InvitationError(
            f"{file.name}: what the server sent is not the file of the invitation; the same "
            "command fetches it again"
        )
    os.replace(part, file)
    sync_folder(file.parent)


def _pieces(source: _Source, start: int, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield what a verified server sends of a file, each piece with its offset in the file.

    Args:
        source: where the file is fetched.
        start: bytes that are there already; the server may begin anew.
        most: most bytes of the file.

    Raises:
        InvitationError: if it does not come, or is too large.
    """
    connection = http.client.HTTPSConnection(
        source.host, source.port, timeout=_SECONDS, context=trusting(source.authority)
    )
    try:
        headers = {"range": f"bytes={start}-"} if start else {}
        connection.request("GET", f"{JOIN_PATH}/{source.name}", headers=headers)
        response = connection.getresponse()
        if response.status not in (200, 206, 416):
            raise InvitationError(
                f"the server does not send the program (status {response.status}); try again in a "
                "minute, or ask for another invitation"
            )
        offset = start if response.status == 206 else 0
        if response.status == 416:  # there are bytes of another file
            yield 0, b""
            return
        while piece := response.read(_PIECE_BYTES):
            if offset + len(piece) > most:
                raise InvitationError(f"the server sends more than {most} bytes of a file")
            yield offset, piece
            offset += len(piece)
    except (http.client.HTTPException, OSError) as error:
        raise InvitationError(
            f"the program was not sent whole: {error or type(error).__name__}; the same command "
            "goes on where it ended"
        ) from error
    finally:
        connection.close()
