"""Creation and verification of the ECDSA signatures (SHA-256) of phones and operators."""

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

from samara.shared.errors import DeviceError

_PROOF = b"samara phone 1\0"
_ANSWER = b"samara answer 1\0"


def proof_bytes(nonce: bytes) -> bytes:
    """Return the bytes that a phone signs to prove possession of its key.

    Args:
        nonce: 32 random bytes from the gateway.
    """
    return _PROOF + nonce


def answer_bytes(instruction: bytes, frame: bytes) -> bytes:
    """Return the bytes that a phone signs to mark a frame as its answer to an instruction."""
    return _ANSWER + hashlib.sha256(instruction).digest() + frame


class SigningKey:
    """The private key of a phone or an operator.

    Args:
        file: OpenSSH private key file on an elliptic curve, without a passphrase.

    Raises:
        DeviceError: if the file cannot be read or holds no elliptic-curve key.
    """

    def __init__(self, file: Path) -> None:
        try:
            key = load_ssh_private_key(file.read_bytes(), None)
        except OSError as error:
            raise DeviceError(f"{file}: the key cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise DeviceError(f"{file}: cannot be read as a private key: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DeviceError(f"{file}: not a key on an elliptic curve")
        self._key = key

    @property
    def public(self) -> bytes:
        """The public key, PEM."""
        return public_pem(self._key)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes, DER."""
        return sign(self._key, data)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the public half of a key, PEM."""
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Sign bytes with a key; return the signature, DER."""
    return key.sign(data, ec.ECDSA(SHA256()))


def is_signed_by(public_key: bytes, signature: bytes, data: bytes) -> bool:
    """Return whether a signature of these bytes was made with a key's private half."""
    try:
        key = load_pem_public_key(public_key)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, data, ec.ECDSA(SHA256()))
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def fingerprint_of(public_key: bytes) -> str:
    """Return the SHA-256 of a public key as PEM, 64 hex digits."""
    return hashlib.sha256(public_key).hexdigest()


def normalize_public_key(public_key: bytes) -> bytes:
    """Return a public key in the canonical PEM form, from which client index and name are derived.

    Raises:
        DeviceError: if the bytes are not a public key on an elliptic curve.
    """
    try:
        key = load_pem_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise DeviceError("the key is not a PEM public key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DeviceError("the key is not an elliptic-curve public key")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
