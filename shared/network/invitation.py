"""Invitations: the code in an operator's line, and the messages by which a device joins.

The line holds a code of two halves. The first half is the hash of a `Welcome`, the data that the
device must trust: the server's certificate authority and the operator's signed scenario, and for a
phone also its gateway and the hashes of its program. A welcome is public, and anybody may fetch it.
The second half is a secret, which the device sends only after it has verified the server by the
authority. So an attacker between device and server cannot pose as the server, change the scenario
or use the code. docs/reference/wire.md describes the format.
"""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from samara.shared.errors import DeviceError, InvitationError
from samara.shared.protocol.signing import is_signed_by, normalize_public_key

JOIN_PATH = "/samara/join"
"""URL path to which devices send their public keys. The paths of welcomes begin with it."""
KEYS_PATH = f"{JOIN_PATH}/keys"
"""URL path under which a gateway asks whether the key with a given fingerprint is registered."""
MAX_WELCOME_BYTES = 2**18
MAX_REQUEST_BYTES = 2**12
_VERSION = 1
_HALF = 16
"""Size in bytes of each half of a code: 128 bits of hash, and 128 bits of secret."""
_CHECK = 2
_PROOF = b"samara-join-1\0"
_IDENTIFIER = b"samara-invitation-1\0"


@dataclass(frozen=True)
class InvitationCode:
    """The code in an invitation's line.

    Attributes:
        trusted: first 16 bytes of the SHA-256 of the encoded `Welcome`.
        secret: 16 random bytes that give the right to register one key.
    """

    trusted: bytes
    secret: bytes

    def __str__(self) -> str:
        content = bytes([_VERSION]) + self.trusted + self.secret
        checked = content + hashlib.sha256(content).digest()[:_CHECK]
        return base64.b32encode(checked).decode().lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a code.

        Raises:
            InvitationError: if the code is incomplete or of another version.
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
                "the code is incomplete; copy the line of `samara server invite` again"
            )
        if content[0] != _VERSION:
            raise InvitationError(
                "the code belongs to another version of Samara; install the server's version"
            )
        return cls(content[1 : 1 + _HALF], content[1 + _HALF :])

    @property
    def identifier(self) -> str:
        """Name of the invitation on its server, 32 hex digits that do not reveal the secret."""
        return hashlib.sha256(_IDENTIFIER + self.secret).hexdigest()[:32]


@dataclass(frozen=True)
class PhoneWelcome:
    """The gateway and the program that a phone must trust.

    Attributes:
        gateway: address of the gateway, host:port.
        gateway_authority: certificate authority of the gateway, PEM.
        program: SHA-256 of the program, 64 hex digits.
        manifest: SHA-256 of the program's manifest, 64 hex digits.
    """

    gateway: str
    gateway_authority: str
    program: str
    manifest: str


@dataclass(frozen=True)
class GatewayWelcome:
    """The gateway that a board must trust.

    Attributes:
        gateway: address of the gateway, host:port.
        gateway_authority: certificate authority of the gateway, PEM.
    """

    gateway: str
    gateway_authority: str


@dataclass(frozen=True)
class Welcome:
    """The data that an invitation makes a device trust.

    Attributes:
        authority: certificate authority of the server, PEM.
        scenario: file of the operator's signed scenario; empty without one.
        phone: gateway and program of a phone; None for other devices.
        board: gateway to which a board attaches; None if it connects to the server.
    """

    authority: str
    scenario: str = ""
    phone: PhoneWelcome | None = None
    board: GatewayWelcome | None = None

    def encode(self) -> bytes:
        """Return the bytes that the server sends. The invitation's code contains their hash."""
        texts = {"authority": self.authority, "scenario": self.scenario}
        way = self.phone or self.board
        return _sorted_json(texts | (asdict(way) if way else {}))

    @property
    def digest(self) -> bytes:
        """The hash of the encoded welcome that an invitation's code contains, 16 bytes."""
        return hashlib.sha256(self.encode()).digest()[:_HALF]

    @classmethod
    def decode(cls, data: bytes, trusted: bytes) -> Self:
        """Decode a welcome that matches the code.

        Args:
            data: bytes from an unverified server.
            trusted: hash in the code, 16 bytes.

        Raises:
            InvitationError: if the hash does not match.
        """
        if hashlib.sha256(data).digest()[:_HALF] != trusted:
            raise InvitationError(
                "the answer does not come from the server of this invitation, or was changed on "
                "the way; nothing was sent. Check the address, or try another network"
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
        signature: proof of possession of the private key, DER.
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
        """Decode a request and check its signature.

        Raises:
            InvitationError: if the body is not a valid request.
        """
        values = _read_object(body, {"secret", "public-key", "signature"})
        try:
            secret, signature = bytes.fromhex(values["secret"]), bytes.fromhex(values["signature"])
            public_key = normalize_public_key(values["public-key"].encode())
        except (ValueError, DeviceError) as error:
            raise InvitationError(
                "this is not a request to join: a value cannot be read"
            ) from error
        if not is_signed_by(public_key, signature, join_proof(secret)):
            raise InvitationError(
                "this is not a request to join: its signature does not match its key"
            )
        return cls(secret, public_key, signature)

    @property
    def identifier(self) -> str:
        """Name of the invitation to which the secret belongs."""
        return InvitationCode(b"", self.secret).identifier


def join_proof(secret: bytes) -> bytes:
    """Return the bytes that a device signs to prove possession of its private key."""
    return _PROOF + secret


def _sorted_json(values: dict[str, str]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def _read_object(data: bytes, *allowed: set[str]) -> dict[str, Any]:
    """Parse a JSON object of texts whose keys are exactly one of the allowed sets.

    Raises:
        InvitationError: if the data are anything else.
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
        raise InvitationError("the message is not in this version's format for invitations")
    return value
