"""An invitation: what a device that has one line from its operator says to a server, and is told.

The line holds a code. Its first half is a hash of what the device is to trust (the server's
authority and the operator's signed scenario; of a phone also its gateway and the hashes of its
program), which is public and fetched by anybody; its second half is a secret, which only a server
that the authority verifies is told. So nobody between them can be the server, change the scenario
or use the code. docs/reference/wire.md has the format.
"""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from samara.shared.errors import DeviceError, InvitationError
from samara.shared.signing import is_signed_by, normalize_public_key

JOIN_PATH = "/samara/join"
"""Path of a server, to which a device sends its public key; below it are the invitations."""
KEYS_PATH = f"{JOIN_PATH}/keys"
"""Path below which a gateway asks whether a key is registered, by its fingerprint."""
MAX_WELCOME_BYTES = 2**18
MAX_REQUEST_BYTES = 2**12
_VERSION = 1
_HALF = 16
"""Bytes of the hash and of the secret: 128 bits each."""
_CHECK = 2
_PROOF = b"samara-join-1\0"
_IDENTIFIER = b"samara-invitation-1\0"


@dataclass(frozen=True)
class InvitationCode:
    """The code in an invitation's line.

    Attributes:
        trusted: first 16 bytes of the SHA-256 of the encoded `Welcome`.
        secret: 16 random bytes, which stand for the right to register one key.
    """

    trusted: bytes
    secret: bytes

    def __str__(self) -> str:
        content = bytes([_VERSION]) + self.trusted + self.secret
        checked = content + hashlib.sha256(content).digest()[:_CHECK]
        return base64.b32encode(checked).decode().lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the code that a text stands for.

        Raises:
            InvitationError: if it was not copied whole, or is of another version.
        """
        try:
            checked = base64.b32decode(text.strip().upper().encode("ascii"))
        except ValueError:
            checked = b""
        content, check = checked[:-_CHECK], checked[-_CHECK:]
        if len(checked) != 1 + 2 * _HALF + _CHECK or (
            hashlib.sha256(content).digest()[:_CHECK] != check
        ):
            raise InvitationError(
                "the code is not whole; copy the line of `samara server invite` again"
            )
        if content[0] != _VERSION:
            raise InvitationError(
                "the code is of another version of Samara; install the server's version"
            )
        return cls(content[1 : 1 + _HALF], content[1 + _HALF :])

    @property
    def identifier(self) -> str:
        """The name of the invitation on its server, 32 hex digits, which tells nothing of the
        secret."""
        return hashlib.sha256(_IDENTIFIER + self.secret).hexdigest()[:32]


@dataclass(frozen=True)
class PhoneWelcome:
    """The gateway and the program that a phone is to trust.

    Attributes:
        gateway: address of the gateway, host:port.
        gateway_authority: certificate that verifies the gateway's, PEM.
        program: SHA-256 of the program, 64 hex digits.
        manifest: SHA-256 of its manifest, 64 hex digits.
    """

    gateway: str
    gateway_authority: str
    program: str
    manifest: str


@dataclass(frozen=True)
class GatewayWelcome:
    """The gateway that a board is to trust.

    Attributes:
        gateway: address of the gateway, host:port.
        gateway_authority: certificate that verifies the gateway's, PEM.
    """

    gateway: str
    gateway_authority: str


@dataclass(frozen=True)
class Welcome:
    """The authority and the scenario that a device is to trust.

    Attributes:
        authority: certificate that verifies the server's, PEM.
        scenario: file of the operator's signed scenario; empty if there is none.
        phone: what a phone is to trust beside; None if the device is none.
        board: gateway that a board attaches to; None if it is to connect to the server.
    """

    authority: str
    scenario: str = ""
    phone: PhoneWelcome | None = None
    board: GatewayWelcome | None = None

    def encode(self) -> bytes:
        """Return the bytes that the server sends and the code has the hash of."""
        texts = {"authority": self.authority, "scenario": self.scenario}
        way = self.phone or self.board
        return _sorted_json(texts | (asdict(way) if way else {}))

    @property
    def digest(self) -> bytes:
        """The hash that stands in a code, 16 bytes."""
        return hashlib.sha256(self.encode()).digest()[:_HALF]

    @classmethod
    def decode(cls, data: bytes, trusted: bytes) -> Self:
        """Return what a server has sent, if it is what the code stands for.

        Args:
            data: bytes from a server that nobody has verified.
            trusted: hash in the code, 16 bytes.

        Raises:
            InvitationError: if it is not.
        """
        if hashlib.sha256(data).digest()[:_HALF] != trusted:
            raise InvitationError(
                "what answers is not the server of this invitation, or somebody is between; "
                "nothing was sent to it. Check the address; on a network of others try another"
            )
        texts = _read_object(data, _WELCOME, _WELCOME | _OF_A_BOARD, _WELCOME | _OF_A_PHONE)
        way = {key: texts[key] for key in texts.keys() - _WELCOME}
        phone = PhoneWelcome(**way) if way.keys() == _OF_A_PHONE else None
        board = GatewayWelcome(**way) if way.keys() == _OF_A_BOARD else None
        return cls(texts["authority"], texts["scenario"], phone, board)


_WELCOME = {"authority", "scenario"}
_OF_A_PHONE = {each.name for each in fields(PhoneWelcome)}
_OF_A_BOARD = {each.name for each in fields(GatewayWelcome)}


@dataclass(frozen=True)
class JoinRequest:
    """The body that a device sends to the verified server.

    Attributes:
        secret: secret of the code.
        public_key: public key of the device, PEM.
        signature: proof, DER, that the device has the private key.
    """

    secret: bytes
    public_key: bytes
    signature: bytes

    def encode(self) -> bytes:
        """Return the body of the request."""
        texts = self.secret.hex(), self.public_key.decode(), self.signature.hex()
        return _sorted_json(dict(zip(("secret", "public-key", "signature"), texts, strict=True)))

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return a request whose signature is sound.

        Raises:
            InvitationError: if the body is no such request.
        """
        values = _read_object(body, {"secret", "public-key", "signature"})
        try:
            secret, signature = bytes.fromhex(values["secret"]), bytes.fromhex(values["signature"])
            public_key = normalize_public_key(values["public-key"].encode())
        except (ValueError, DeviceError) as error:
            raise InvitationError("not a request to join: a value cannot be read") from error
        if not is_signed_by(public_key, signature, join_proof(secret)):
            raise InvitationError("not a request to join: it is not signed with its key")
        return cls(secret, public_key, signature)

    @property
    def identifier(self) -> str:
        """The name of the invitation that the secret belongs to."""
        return InvitationCode(b"", self.secret).identifier


def join_proof(secret: bytes) -> bytes:
    """Return the bytes that a device signs to prove that it has the private key."""
    return _PROOF + secret


def _sorted_json(values: dict[str, str]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def _read_object(data: bytes, *allowed: set[str]) -> dict[str, Any]:
    """Return a JSON object of texts whose keys are exactly one of these sets.

    Raises:
        InvitationError: if it is something else.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if (
        not isinstance(value, dict)
        or value.keys() not in allowed
        or not all(isinstance(text, str) for text in value.values())
    ):
        raise InvitationError("not a message about an invitation of this version of Samara")
    return value
