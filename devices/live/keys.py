"""The private key that identifies a client."""

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from shared.client_index import client_index_of_key, index_in_key_file
from shared.errors import DeviceError
from shared.files import write_durably


def read_client_index(file: Path) -> int:
    """Return the client index that belongs to a private key.

    Args:
        file: an OpenSSH private key on an elliptic curve, without a passphrase, as
            ``samara server keys create`` makes it. One of ``samara server keys rotate`` has a line
            with the index of the client's first key.

    Raises:
        DeviceError: if the file is no such key or cannot be read.
    """
    try:
        content = file.read_bytes()
        key = load_ssh_private_key(content, None)
    except OSError as error:
        raise DeviceError(f"{file}: the key cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeviceError(f"{file}: not an OpenSSH private key without a passphrase") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeviceError(f"{file}: not an elliptic-curve key, which Flower requires")
    if (client := index_in_key_file(content)) is not None:
        return client
    return client_index_of_key(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )


def create_key(file: Path) -> None:
    """Create a private key file, unless the file exists.

    Args:
        file: key file, in a folder that only its owner may read.

    Raises:
        DeviceError: if the file cannot be written.
    """
    if file.exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    try:
        write_durably(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        file.chmod(0o600)
    except OSError as error:
        raise DeviceError(f"{file}: cannot be written: {error.strerror}") from error
