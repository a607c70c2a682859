"""The keys registered at the server, which a gateway without a folder of keys admits."""

from samara.devices.gateway.admitted_keys import AdmittedKeys
from samara.devices.gateway.server_requests import ServerRequests
from samara.shared.errors import DeviceError
from samara.shared.network.invitation import KEYS_PATH
from samara.shared.protocol.signing import fingerprint_of
from samara.shared.storage.files import make_private_folder, write_durably


class RegisteredKeys:
    """The keys of a run's clients, as confirmed by the server.

    The gateway stores each confirmed key in a folder, and does not ask the server about it again. A
    key that is revoked later stays in the folder. The server itself refuses the answers of a phone
    with a revoked key.

    Args:
        known: keys that the server has confirmed, and their folder.
        server: client for the server's HTTPS interface.
    """

    def __init__(self, known: AdmittedKeys, server: ServerRequests) -> None:
        self._known = known
        self._server = server

    def __call__(self, public_key: bytes) -> bool:
        """Return whether the server has registered a public key (PEM) for a client.

        Raises:
            DeviceError: if the server cannot be asked, or its answer is invalid.
        """
        fingerprint = fingerprint_of(public_key)
        status, _ = self._server.ask("GET", f"{KEYS_PATH}/{fingerprint}")
        if status == 404:
            return False
        if status != 200:
            raise DeviceError(f"the server answered with status {status}")
        try:
            make_private_folder(self._known.folder)
            write_durably(self._known.folder / f"{fingerprint}.pem", public_key)
        except OSError as error:
            raise DeviceError(
                f"{self._known.folder}: the phone's key cannot be stored there: {error}"
            ) from error
        return True
