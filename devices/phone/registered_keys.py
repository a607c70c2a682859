"""The keys that a gateway without a folder of keys admits: those of the server's clients."""

import http.client
from pathlib import Path

from devices.live.tls_contexts import verifying_context
from devices.phone.admitted_keys import AdmittedKeys
from shared.addresses import parse_address
from shared.errors import DeviceError
from shared.files import make_private_folder, write_durably
from shared.invitation import KEYS_PATH
from shared.signing import fingerprint_of

_SECONDS = 10.0


class RegisteredKeys:
    """The clients' keys of a run, each asked for once and then kept in a folder.

    A key that is revoked later stays there: the server itself refuses what its phone sends.

    Args:
        known: keys that were asked for before, and the folder of them.
        superlink: address of the server, host:port.
        authority: certificate that verifies the server, PEM; None means the system's authorities.
    """

    def __init__(self, known: AdmittedKeys, superlink: str, authority: Path | None) -> None:
        self._known, self._authority = known, authority
        self._host, self._port = parse_address(superlink)

    def __call__(self, public_key: bytes) -> bool:
        """Return whether the server has registered a public key (PEM) for a client.

        Raises:
            DeviceError: if the server cannot be asked, or says something else.
        """
        fingerprint = fingerprint_of(public_key)
        status = self._ask(fingerprint)
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

    def _ask(self, fingerprint: str) -> int:
        """Return the status of the server's answer about a key."""
        context = verifying_context(self._authority)
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=_SECONDS, context=context
        )
        try:
            connection.request("GET", f"{KEYS_PATH}/{fingerprint}")
            return connection.getresponse().status
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise DeviceError(f"the server cannot be asked: {error}") from error
        finally:
            connection.close()
