"""The key that a device is known by."""

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

from shared.client_index import client_index_of_key
from shared.errors import DeviceError
from shared.files import write_durably


def read_client_index(file: Path) -> int:
    """The index of the device that has this private key.

    Args:
        file: an OpenSSH private key on an elliptic curve, without a passphrase, as
            ``samara server keys create`` makes it.

    Raises:
        DeviceError: if it is something else or cannot be read.
    """
    try:
        key = load_ssh_private_key(file.read_bytes(), None)
    except OSError as error:
        raise DeviceError(f"{file}: the key cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeviceError(f"{file}: not an OpenSSH private key without passphrase") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeviceError(f"{file}: not a key on an elliptic curve, which Flower asks for")
    return client_index_of_key(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )


def create_key(file: Path) -> None:
    """Make a private key, unless there is one.

    Args:
        file: in a folder that nobody else may enter.

    Raises:
        DeviceError: if the disk refuses.
    """
    if file.exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    try:
        write_durably(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        file.chmod(0o600)
    except OSError as error:
        raise DeviceError(f"{file}: cannot be written: {error.strerror}") from error
