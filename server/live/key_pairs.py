"""Functions that create, encode and read the key pairs of clients."""

from collections.abc import Collection
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from samara.shared.errors import DeviceError, SamaraError
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import normalize_public_key


def read_public_key(file: Path) -> bytes:
    """Return the public key in a PEM file, as PEM in normalized form.

    Raises:
        SamaraError: if the file holds no public key on an elliptic curve.
    """
    try:
        return normalize_public_key(file.read_bytes())
    except OSError as error:
        raise SamaraError(f"{file}: cannot be read: {error.strerror}") from error
    except DeviceError as error:
        raise SamaraError(f"{file}: {error}") from error


def encode_key(private: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in the format that ``flower-supernode`` reads."""
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )


def new_key(used_indices: Collection[int]) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    """Create a private key whose client index is unused; return the key and its public key, PEM."""
    while True:
        private = ec.generate_private_key(ec.SECP384R1())
        public = private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        if client_index_of_key(public) not in used_indices:
            return private, public
