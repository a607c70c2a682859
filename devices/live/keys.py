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

from samara.shared.errors import DeviceError
from samara.shared.protocol.client_index import (
    MAX_CLIENT,
    client_index_of_key,
    index_in_key_file,
    index_line,
)
from samara.shared.storage.files import write_secret

OWN_KEY_FILE = "own.key"
"""Name of the key file that a client creates in its folder if its owner gives no key file."""


def read_client_index(file: Path) -> int:
    """Return the client index of a private key.

    Args:
        file: OpenSSH private key on an elliptic curve, without a passphrase, as created by ``samara
            server keys create``. A key created by ``samara server keys rotate`` has a line with the
            index of the client's first key.

    Raises:
        DeviceError: if the file cannot be read, or contains no such key.
    """
    try:
        content = file.read_bytes()
        key = load_ssh_private_key(content, None)
    except OSError as error:
        raise DeviceError(f"{file}: the key cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeviceError(
            f"{file}: this file is not an OpenSSH private key without a passphrase; "
            f"give another --key"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeviceError(
            f"{file}: Flower requires a key on an elliptic curve, and this key is of another kind; "
            f"give another --key"
        )
    if (client := index_in_key_file(content)) is not None:
        return client
    return client_index_of_key(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )


def create_key(file: Path, client: int | None = None) -> None:
    """Create a private key file, unless the file exists.

    Args:
        file: path of the key file, in a folder that only its owner may read.
        client: client index to keep if the client had another key before; by default, the client
            index follows from the new key.

    Raises:
        DeviceError: if the file cannot be written, the index is too large, or the file exists and
            is the key of another client.
    """
    if client is not None and client > MAX_CLIENT:
        raise DeviceError(
            f"{client}: this is not a client index; the largest index is {MAX_CLIENT}"
        )
    if file.exists():
        if client is not None and read_client_index(file) != client:
            raise DeviceError(
                f"{file}: this file exists and is not the key of client {client}; name a new file"
            )
        return
    key = ec.generate_private_key(ec.SECP384R1())
    content = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        write_secret(file, content + (b"" if client is None else index_line(client)))
    except OSError as error:
        raise DeviceError(f"{file}: the key cannot be written: {error.strerror}") from error
