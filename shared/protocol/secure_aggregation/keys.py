"""Keys of a round: key agreement between clients, and encryption of their shares.

Key agreement is ECDH on P-256, keys are derived by HKDF-SHA256, and shares are encrypted by
AES-256-GCM. All clients support these algorithms, including browsers by WebCrypto.

The shared key of two clients depends on their indices and on the list of clients that each has
received. So a client that copies another client's public key gets other masks. A client that
received another list cannot decrypt the other's messages.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from samara.shared.errors import MaskingError

KEY_BYTES = 65
"""Size in bytes of a public key, an uncompressed point."""
SECRET_BYTES = 32
"""Size in bytes of a private key or a seed; both are little-endian."""
NONCE_BYTES, _TAG_BYTES = 12, 16
SEAL_BYTES = NONCE_BYTES + _TAG_BYTES
"""Number of bytes by which a ciphertext is longer than its plaintext."""
SEALING, MASKING = b"shares", b"mask"
"""Purposes of the two keys that a pair of clients agrees on: encryption of shares, and masks."""
_INFO = b"samara-masking-2\0"


@dataclass(frozen=True, repr=False)
class RoundKey:
    """A private key for one round; its repr hides the secret from logs.

    Attributes:
        secret: the private number, 32 bytes, little-endian.
    """

    secret: bytes

    @classmethod
    def generate(cls) -> "RoundKey":
        """Create a key from the operating system's randomness."""
        private = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
        return cls(private.to_bytes(SECRET_BYTES, "little"))

    @cached_property
    def _private(self) -> ec.EllipticCurvePrivateKey:
        try:
            return ec.derive_private_key(int.from_bytes(self.secret, "little"), ec.SECP256R1())
        except ValueError as error:
            raise MaskingError("the secret is not a private key on P-256") from error

    @cached_property
    def public(self) -> bytes:
        """The public key, 65 bytes.

        Raises:
            MaskingError: if the secret is not a valid private key.
        """
        public = self._private.public_key()
        return public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def agree(self, public: bytes, purpose: bytes, pair: bytes) -> bytes:
        """Return the shared key with another client, 32 bytes.

        Args:
            public: the other client's public key, 65 bytes.
            purpose: `SEALING` or `MASKING`, equal on both sides.
            pair: encoding of the two clients by `pair_of`, equal on both sides.

        Raises:
            MaskingError: if the public key is invalid.
        """
        shared = self._private.exchange(ec.ECDH(), load_public(public))
        return HKDF(SHA256(), 32, salt=None, info=_INFO + purpose + b"\0" + pair).derive(shared)


def load_public(public: bytes) -> ec.EllipticCurvePublicKey:
    """Read a public key.

    Raises:
        MaskingError: if the bytes are not a point on P-256.
    """
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    except ValueError as error:
        raise MaskingError("a public key is not a point on P-256") from error


def digest_of_clients(token: bytes, clients: Sequence[int]) -> bytes:
    """Return the digest of a list of clients, 32 bytes; keys and signatures are bound to it.

    Args:
        token: token of the round's instruction, 8 bytes.
        clients: indices of the round's clients, or of a bucket's, ascending.
    """
    listed = b"".join(client.to_bytes(4, "little") for client in clients)
    return hashlib.sha256(b"samara-clients-1\0" + token + listed).digest()


def pair_of(clients_digest: bytes, one: int, other: int) -> bytes:
    """Encode two clients of a list as the context of their shared key, 40 bytes.

    The order of the two clients has no effect.

    Args:
        clients_digest: digest of the list, `digest_of_clients`.
        one, other: client indices.
    """
    first, second = sorted((one, other))
    return clients_digest + first.to_bytes(4, "little") + second.to_bytes(4, "little")


def fresh_seed() -> bytes:
    """Return 32 bytes of the operating system's randomness."""
    return secrets.token_bytes(SECRET_BYTES)


def commit_to(seed: bytes) -> bytes:
    """Return the hash that commits to a seed, 32 bytes."""
    return hashlib.sha256(b"samara-seed-1\0" + seed).digest()


def seal(key: bytes, content: bytes, sender: int, receiver: int, token: bytes) -> bytes:
    """Encrypt content for one receiver and one round.

    Args:
        key: shared key of the two clients, 32 bytes.
        content: plaintext.
        sender, receiver: client indices.
        token: token of the round's instruction.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, _associated(sender, receiver, token))


def unseal(key: bytes, sealed: bytes, sender: int, receiver: int, token: bytes) -> bytes:
    """Decrypt a ciphertext of `seal`.

    Raises:
        MaskingError: if the ciphertext is forged, or for another round, sender or receiver.
    """
    nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    try:
        return AESGCM(key).decrypt(nonce, rest, _associated(sender, receiver, token))
    except (InvalidTag, ValueError) as error:
        raise MaskingError(f"the shares of client {sender} cannot be read") from error


def _associated(sender: int, receiver: int, token: bytes) -> bytes:
    return token + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")
