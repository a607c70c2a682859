"""Invitations of a run: each lets one device register its own key once, before a deadline.

RUN/invitations/ID.json   the client's name, the deadline, and the welcome, without the code
RUN/programs/HASH         a program or manifest for invited phones

An invitation is used up when the device's key is registered under the client's name. The
registration writes a single file. If the server is killed, the key is therefore either registered
or not, and a device that repeats its request gets the same answer.
"""

import json
import secrets
import tomllib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.live_config import SCENARIO_FILE
from samara.shared.errors import SamaraError
from samara.shared.network.invitation import (
    GatewayWelcome,
    InvitationCode,
    JoinRequest,
    PhoneWelcome,
    Welcome,
)
from samara.shared.settings.sections import EMBEDDED_MODEL
from samara.shared.storage.blob_store import blob_hash
from samara.shared.storage.files import copy_durably, make_private_folder, write_durably
from samara.shared.tasks.sources import is_hub_name
from samara.shared.terms.signed_scenario import read_scenario

INVITATIONS_FOLDER = "invitations"
PROGRAMS_FOLDER = "programs"


class JoinError(Exception):
    """Raised if a request to join is refused.

    Args:
        status: HTTP status of the answer; the device receives no other reason.
        reason: reason for the server's log, with ``%s`` for each detail.
        details: values for the ``%s``, such as the name of an invitation.
    """

    def __init__(self, status: int, reason: str, *details: str) -> None:
        super().__init__(reason % details)
        self.status, self.reason, self.details = status, reason, details


@dataclass(frozen=True)
class _Invitation:
    name: str
    end: str
    authority: str
    scenario: str
    phone: dict[str, str] | None = None
    board: dict[str, str] | None = None

    @property
    def welcome(self) -> Welcome:
        """The welcome, with the addresses and certificates that the device will trust."""
        phone = PhoneWelcome(**self.phone) if self.phone else None
        board = GatewayWelcome(**self.board) if self.board else None
        return Welcome(self.authority, self.scenario, phone, board)


def board_welcome(gateway: str, authority: Path) -> GatewayWelcome:
    """Return the welcome (address and certificate to trust) for a board that attaches to a gateway.

    Args:
        gateway: address of the gateway, host:port.
        authority: certificate authority of the gateway, PEM file.

    Raises:
        SamaraError: if the certificate cannot be read.
    """
    try:
        return GatewayWelcome(gateway, authority.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise SamaraError(f"the board cannot be invited to the gateway: {error}") from error


def phone_welcome(run: Path, gateway: str, authority: Path, program: Path) -> PhoneWelcome:
    """Return the welcome for a phone: the gateway, its certificate, and the phone's program.

    The program and its manifest are copied into the folder of the run.

    Args:
        run: folder of the run.
        gateway: address of the gateway, host:port.
        authority: certificate authority of the gateway, PEM file.
        program: program from `samara phone export`, with its manifest beside it.

    Raises:
        SamaraError: if a file cannot be read or written.
    """
    folder = run / PROGRAMS_FOLDER
    manifest = program.with_suffix(".json")
    try:
        if json.loads(manifest.read_bytes()).get("weights"):
            raise SamaraError(
                f"{program} is for browsers, because its weights are in separate files; invite the "
                "phone's browser with --page"
            )
        make_private_folder(folder)
        return PhoneWelcome(
            gateway=gateway,
            gateway_authority=authority.read_text(encoding="ascii"),
            program=_keep(program, folder),
            manifest=_keep(manifest, folder),
        )
    except (OSError, ValueError) as error:
        raise SamaraError(f"the phone cannot be invited: {error}") from error


def invite_client(
    run: Path,
    name: str,
    authority: Path,
    scenario: Path | None,
    end: datetime,
    phone: PhoneWelcome | None = None,
    board: GatewayWelcome | None = None,
) -> InvitationCode:
    """Create an invitation and return its code; an earlier invitation of the name is deleted.

    Args:
        run: folder of the run.
        name: name of the client.
        authority: certificate authority of the server, PEM file.
        scenario: file of the operator's signed scenario; None without one.
        end: deadline for registering a key.
        phone: gateway and program, if the client is a phone.
        board: gateway, if the client is a board that attaches to a gateway.

    Raises:
        SamaraError: if the name is not available, or a file cannot be read or written.
    """
    ClientKeys(run / KEYS_FOLDER).check_name(name)
    folder = run / INVITATIONS_FOLDER
    signed = read_scenario(scenario).encode().decode() if scenario else ""
    try:
        invitation = _Invitation(
            name=name,
            end=end.isoformat(),
            authority=authority.read_text(encoding="ascii"),
            scenario=signed,
            phone=asdict(phone) if phone else None,
            board=asdict(board) if board else None,
        )
        code = InvitationCode(invitation.welcome.digest, secrets.token_bytes(16))
        make_private_folder(folder)
        for file in folder.glob("*.json"):
            earlier = _read(file)
            if earlier is None or earlier.name == name or _has_ended(earlier):
                file.unlink()
        write_durably(_file(folder, code.identifier), json.dumps(asdict(invitation)).encode())
    except (OSError, ValueError) as error:
        raise SamaraError(f"{name} cannot be invited: {error}") from error
    return code


def exclude_client(run: Path, name: str) -> str:
    """Revoke a client's key, or delete its invitation if the client has not joined yet.

    Args:
        run: folder of the run; it may be served at the same time.
        name: name of the client.

    Returns:
        A sentence about the change.

    Raises:
        SamaraError: if the client has neither a key nor an invitation.
    """
    keys = ClientKeys(run / KEYS_FOLDER)
    if keys.find_by_name(name):
        return f"{name}: its key was revoked on {keys.revoke(name).revoked}"
    files = list((run / INVITATIONS_FOLDER).glob("*.json"))
    named = [file for file in files if (one := _read(file)) and one.name == name]
    if not named:
        raise SamaraError(f"{run}: has no key and no invitation of {name}; check the name")
    for file in named:
        file.unlink(missing_ok=True)
    return f"{name}: its invitation is no longer valid"


class Invitations:
    """The invitations of a run, for the process that answers devices.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._folder, self._keys = run / INVITATIONS_FOLDER, ClientKeys(run / KEYS_FOLDER)
        self._programs, self._scenario = run / PROGRAMS_FOLDER, run / SCENARIO_FILE

    def welcome(self, identifier: str) -> bytes:
        """Return the encoded welcome of an invitation.

        Args:
            identifier: id of the invitation, 32 hex digits.

        Raises:
            JoinError: if there is no such invitation.
        """
        return self._find(identifier).welcome.encode()

    def program_file(self, identifier: str, digest: str) -> Path:
        """Return the program or manifest of an invitation.

        Args:
            identifier: id of the invitation, 32 hex digits.
            digest: SHA-256 of the file, 64 hex digits.

        Raises:
            JoinError: if there is no such invitation, or the invitation has no such file.
        """
        phone = self._find(identifier).welcome.phone
        if phone is None or digest not in (phone.program, phone.manifest):
            raise JoinError(404, "requested a program that its invitation does not name")
        return self._programs / digest

    def check_key(self, fingerprint: str) -> None:
        """Check that a client that may take part has the key with this fingerprint.

        Raises:
            JoinError: if there is no such client.
        """
        if not self._keys.has_fingerprint(fingerprint):
            raise JoinError(404, "asked for a key that is not registered, or was revoked")

    def redeem(self, request: JoinRequest) -> str:
        """Register a device's key and return the name of its client.

        A device that sends the same key again gets the same answer, even after the deadline.

        Raises:
            JoinError: if there is no such invitation, if the invitation has expired or was used
                with another key, or if the key cannot be registered.
        """
        invitation = self._find(request.identifier)
        name = invitation.name
        if key := self._keys.find_by_name(name):
            if key.public_key.encode() != request.public_key:
                raise JoinError(409, "the invitation of %s was used with another key", name)
            if key.revoked:
                raise JoinError(403, "the key of %s was revoked on %s", name, str(key.revoked))
            return name
        if _has_ended(invitation):
            raise JoinError(410, "the invitation of %s ended on %s", name, str(invitation.end))
        try:
            self._keys.register(name, request.public_key, "its key")
        except SamaraError as error:
            raise JoinError(422, "%s", str(error)) from error
        except OSError as error:
            raise JoinError(503, "the key of %s cannot be written: %s", name, str(error)) from error
        return name

    def names(self) -> dict[str, str]:
        """Return the run's ``task`` and ``model`` for the start command of a device.

        A task file on this machine is returned as a bare file name. A model that is a local path is
        left out.
        """
        try:
            settings = tomllib.loads(self._scenario.read_text(encoding="utf-8"))
            task, model = str(settings["task"]), str(settings["model"]["path"])
        # the names only help the device's owner
        except (OSError, ValueError, LookupError, TypeError):
            return {}
        is_local = not is_hub_name(model) or Path(model).exists()
        named = {"task": Path(task).name}
        return named if is_local and model != EMBEDDED_MODEL else named | {"model": model}

    def _find(self, identifier: str) -> _Invitation:
        invitation = _read(_file(self._folder, identifier))
        if invitation is None:
            raise JoinError(404, "has a code that belongs to no current invitation")
        return invitation


def _keep(file: Path, folder: Path) -> str:
    """Copy a file into a folder, named by its SHA-256; return this hash as 64 hex digits."""
    digest = blob_hash(file).hex()
    if not (folder / digest).exists():
        copy_durably(file, folder / digest)
    return digest


def _file(folder: Path, identifier: str) -> Path:
    return folder / f"{identifier}.json"


def _read(file: Path) -> _Invitation | None:
    """Return an invitation; None if its file is missing or damaged."""
    try:
        invitation = _Invitation(**json.loads(file.read_text(encoding="utf-8")))
        datetime.fromisoformat(invitation.end)
        _ = invitation.welcome
    except (OSError, ValueError, TypeError):
        return None
    return invitation


def _has_ended(invitation: _Invitation) -> bool:
    return datetime.now(UTC) > datetime.fromisoformat(invitation.end)
