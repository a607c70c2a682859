"""The keys that a gateway without a folder of keys admits: those of the server's clients."""

from samara.devices.phone.admitted_keys import AdmittedKeys
from samara.devices.phone.server_requests import ServerRequests
from samara.shared.errors import DeviceError
from samara.shared.files import make_private_folder, write_durably
from samara.shared.invitation import KEYS_PATH
from samara.shared.signing import fingerprint_of


class RegisteredKeys:
    """The clients' keys of a run, each asked for once and then kept in a folder.

    A key that is revoked later stays there: the server itself refuses what its phone sends.

    Args:
        known: keys that were asked for before, and the folder of them.
        server: what asks the server.
    """

    def __init__(self, known: AdmittedKeys, server: ServerRequests) -> None:
        self._known, self._server = known, server

    def __call__(self, public_key: bytes) -> bool:
        """Return whether the server has registered a public key (PEM) for a client.

        Raises:
            DeviceError: if the server cannot be asked, or says something else.
        """
        fingerprint = fingerprint_of(public_key)
        status, _ = self._server.ask("GET", f"{KEYS_PATH}/{fingerprint}")
        if status == 404:
            return False
        if status != 200:
            raise DeviceError(f"the server answers with status {status}")
        try:
            make_private_folder(self._known.folder)
            write_durably(self._known.folder / f"{fingerprint}.pem", public_key)
        except OSError as error:
            raise DeviceError(f"{self._known.folder}: cannot be written: {error}") from error
        return True
