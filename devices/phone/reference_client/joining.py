"""Joining a run by a phone's invitation, without copying files by hand.

HOME/own.key       the private key, created at the first try; only its public half is sent
HOME/scenarios/    the operator's signed scenario, if the invitation has one
HOME/model.pte     the program and its manifest model.json, matching the invitation's hashes
HOME/gateway.pem   the authority that verifies the gateway
HOME/joined.json   address of the gateway; written last
"""

import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from samara.devices.live.client_folder import PHONE_LOCK, check_is_no_boards
from samara.devices.live.connection.tls_contexts import invited_context
from samara.devices.live.join import (
    GATEWAY_AUTHORITY_FILE,
    JoinedFile,
    fetch_welcome,
    locked_folder,
    register,
)
from samara.devices.live.keys import OWN_KEY_FILE, create_key
from samara.devices.phone.manifest import MAX_MANIFEST_BYTES, manifest_file
from samara.shared.errors import InvitationError
from samara.shared.network.addresses import parse_address
from samara.shared.network.invitation import JOIN_PATH, InvitationCode
from samara.shared.storage.blob_store import blob_hash
from samara.shared.storage.files import UNFINISHED, sync_folder, write_durably

PROGRAM_FILE = "model.pte"
AUTHORITY_FILE = GATEWAY_AUTHORITY_FILE
IN_USE = "another `samara phone up` uses this folder"
MAX_PROGRAM_BYTES = 2**36
_PIECE_BYTES = 2**18
_SECONDS = 60.0


class JoinedGateway(NamedTuple):
    """The gateway and the files of a phone that has joined by an invitation.

    Attributes:
        gateway: address of the gateway, host:port.
        authority: certificate that verifies the gateway, PEM.
        key: private key file of the phone.
        program: program, with its manifest beside it.
    """

    gateway: str
    authority: Path
    key: Path
    program: Path


def join_run(address: str, code: InvitationCode, home: Path) -> list[str]:
    """Register this phone's key, download the invitation's program, and store its gateway.

    After an interruption, the same call continues with the same key.

    Args:
        address: address of the server, host:port.
        code: code of the invitation.
        home: folder of the phone; created if missing.

    Returns:
        Sentences about the phone for its owner.

    Raises:
        SamaraError: if the folder cannot be used, the server does not match the invitation, or the
            server refuses or sends invalid data.
    """
    parse_address(address, "the server's address")
    program = home / PROGRAM_FILE
    check_is_no_boards(home)
    with locked_folder(home, PHONE_LOCK, IN_USE):
        create_key(home / OWN_KEY_FILE)
        welcome = fetch_welcome(address, code)
        if (phone := welcome.phone) is None:
            raise InvitationError(
                "the invitation is not for a phone; run its command, `samara client join …`"
            )
        parse_address(phone.gateway, "the gateway's address")
        lines = register(address, code, welcome, home).lines
        source = _Source(address, welcome.authority, code.identifier)
        _download(source, program, phone.program, MAX_PROGRAM_BYTES)
        _download(source, manifest_file(program), phone.manifest, MAX_MANIFEST_BYTES)
        write_durably(home / AUTHORITY_FILE, phone.gateway_authority.encode())
        JoinedFile(home, "gateway").write({"gateway": phone.gateway})
    return lines


def read_joined_gateway(home: Path) -> JoinedGateway | None:
    """Return the gateway and program of a phone; None if it never joined by an invitation.

    Raises:
        DeviceError: if the file with the gateway's address is damaged.
    """
    if (joined := JoinedFile(home, "gateway").read()) is None:
        return None
    return JoinedGateway(
        joined["gateway"], home / AUTHORITY_FILE, home / OWN_KEY_FILE, home / PROGRAM_FILE
    )


class _Source(NamedTuple):
    """The server of an invitation's files: address, PEM of its authority, and the invitation."""

    address: str
    authority: str
    invitation: str


def _download(source: _Source, file: Path, digest: str, most: int) -> None:
    """Download a file unless it exists, continuing an earlier attempt.

    Raises:
        InvitationError: if the file does not arrive, does not match the invitation, or is too
            large.
        OSError: if the file cannot be written.
    """
    if file.exists() and blob_hash(file).hex() == digest:
        return
    part = file.with_name(file.name + UNFINISHED)
    with part.open("ab") as out:
        for offset, piece in _pieces(source, digest, out.tell(), most):
            out.truncate(offset)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    if blob_hash(part).hex() != digest:
        part.unlink()
        raise InvitationError(
            f"{file.name}: the file sent by the server does not match the invitation; run the "
            f"same command again"
        )
    os.replace(part, file)
    sync_folder(file.parent)


def _pieces(source: _Source, digest: str, start: int, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of a file from a verified server, each with its offset in the file.

    Args:
        source: source of the file.
        digest: SHA-256 of the file, 64 hex digits.
        start: number of bytes already present. If the server sends the whole file again, the first
            offset is 0.
        most: size limit of the file in bytes.

    Raises:
        InvitationError: if the file does not arrive, or is too large.
    """
    host, port = parse_address(source.address)
    context = invited_context(source.authority)
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        headers = {"range": f"bytes={start}-"} if start else {}
        connection.request("GET", f"{JOIN_PATH}/{source.invitation}/{digest}", headers=headers)
        response = connection.getresponse()
        if response.status not in (200, 206, 416):
            raise InvitationError(
                f"the server did not send the program (status {response.status}); try again in a "
                f"minute, or ask for another invitation"
            )
        offset = start if response.status == 206 else 0
        if response.status == 416:  # the bytes on disk belong to another file
            yield 0, b""
            return
        while piece := response.read(_PIECE_BYTES):
            if offset + len(piece) > most:
                raise InvitationError(
                    f"the server sent more than {most} bytes of a file; ask for another invitation"
                )
            yield offset, piece
            offset += len(piece)
    except (http.client.HTTPException, OSError) as error:
        raise InvitationError(
            f"the program did not arrive completely: {error or type(error).__name__}; run the "
            f"same command again to continue"
        ) from error
    finally:
        connection.close()
