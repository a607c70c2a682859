"""The operator's signature on a scenario, which clients trust more than the server's settings."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from samara.shared.errors import SamaraError
from samara.shared.protocol.signing import SigningKey
from samara.shared.settings.blobs import file_settings
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes
from samara.shared.storage.files import make_folder, write_requested, write_secret
from samara.shared.terms.signed_scenario import SIGNED_KIND, SignedScenario, describe_operator


def create_operator_key(file: Path) -> str:
    """Create an operator's private key; return the first digits of the public key's hash.

    Raises:
        SamaraError: if the file exists or cannot be written.
    """
    if file.exists():
        raise SamaraError(
            f"{file}: already exists, and clients may trust this key; name another file"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    try:
        make_folder(file.absolute().parent)
        write_secret(file, secret)
    except OSError as error:
        raise SamaraError(f"{file}: cannot be written: {error.strerror}") from error
    return describe_operator(SigningKey(file).public)


def sign_scenario(config: RunConfig, key: Path, out: Path) -> SignedScenario:
    """Write the settings of a run with an operator's signature.

    Args:
        config: settings of the run, in the form that `samara server up` passes to the run. In this
            form, files are named by their hashes.
        key: private key of the operator.
        out: output file.

    Raises:
        SamaraError: if the key cannot be read or the file cannot be written.
    """
    scenario = SignedScenario.sign(identity_bytes(config), file_settings(config), SigningKey(key))
    write_requested(out, scenario.encode(), SIGNED_KIND)
    return scenario
