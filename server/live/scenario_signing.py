"""An operator's signature under a scenario, which clients accept in place of the server's word."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from samara.shared.blobs import file_settings
from samara.shared.config import RunConfig
from samara.shared.errors import SamaraError
from samara.shared.files import make_folder, write_durably, write_secret
from samara.shared.runs import identity_bytes
from samara.shared.signed_scenario import SignedScenario, describe_operator
from samara.shared.signing import SigningKey


def create_operator_key(file: Path) -> str:
    """Make an operator's private key; return the first digits of its public key's hash.

    Raises:
        SamaraError: if the file exists, or cannot be written.
    """
    if file.exists():
        raise SamaraError(f"{file}: there is a key already, which clients may have accepted")
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        make_folder(file.absolute().parent)
        write_secret(file, secret)
    except OSError as error:
        raise SamaraError(f"{file}: cannot be written: {error.strerror}") from error
    return describe_operator(SigningKey(file).public)


def sign_scenario(config: RunConfig, key: Path, out: Path) -> SignedScenario:
    """Write the settings of a run, signed by an operator.

    Args:
        config: settings as `samara server up` gives them to its run, with files by their hashes.
        key: private key of the operator.
        out: file to write.

    Raises:
        SamaraError: if the key cannot be read, or the file not be written.
    """
    scenario = SignedScenario.sign(identity_bytes(config), file_settings(config), SigningKey(key))
    try:
        write_durably(out, scenario.encode())
    except OSError as error:
        raise SamaraError(f"{out}: cannot be written: {error.strerror}") from error
    return scenario
