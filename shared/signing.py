"""What a phone signs, and how that is checked: ECDSA with SHA-256 under the key it is known by."""

import hashlib
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_private_key,
)

from shared.errors import DeviceError

_PROOF = b"samara phone 1\0"
_ANSWER = b"samara answer 1\0"


def of_proof(nonce: bytes) -> bytes:
    """The bytes that prove, signed, that a phone holds its key."""
    return _PROOF + nonce


def of_answer(instruction: bytes, frame: bytes) -> bytes:
    """The bytes that, signed, make a frame a phone's own answer to an instruction."""
    return _ANSWER + hashlib.sha256(instruction).digest() + frame


class PhoneKey:
    """A phone's private key.

    Args:
        file: as `devices.live.keys.create_key` writes it.

    Raises:
        DeviceError: if it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        try:
            key = load_ssh_private_key(file.read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise DeviceError(f"{file}: not a private key that can be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DeviceError(f"{file}: not a key on an elliptic curve")
        self._key = key

    @property
    def public(self) -> bytes:
        """PEM."""
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def sign(self, data: bytes) -> bytes:
        """A signature, DER."""
        return self._key.sign(data, ec.ECDSA(SHA256()))


def verified(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Whether the holder of a key signed these bytes."""
    try:
        key = load_pem_public_key(public_key)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, data, ec.ECDSA(SHA256()))
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def normalized(public_key: bytes) -> bytes:
    """A public key as its own PEM, of which client index and name are made.

    Raises:
        DeviceError: if it is none, or not on an elliptic curve.
    """
    try:
        key = load_pem_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeviceError("not a public key (PEM)") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DeviceError("not a public key on an elliptic curve")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
