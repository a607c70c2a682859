"""The stream as a client's wire: one connection to a gateway, which wakes the client."""

import threading
from functools import partial

from samara.devices.live.board import Board
from samara.devices.live.gateway_endpoint import GatewayEndpoint
from samara.devices.live.gateway_stream import attach
from samara.devices.live.keys import OWN_KEY_FILE
from samara.devices.live.received_bytes import largest_state
from samara.devices.live.server_contact import Reachability
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import SamaraError
from samara.shared.signing import SigningKey

LONGEST_PAUSE = 60.0
"""Most seconds before a board tries a gateway again, but for the random part."""


class StreamWire:
    """A thread that stays attached to one of the client's gateways and answers its tasks.

    Args:
        settings: settings of the client.

    Raises:
        SamaraError: if the key or the certificate cannot be used.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._stop, self._is_finished = threading.Event(), False
        self._failure: SamaraError | None = None
        self._board = Board(settings.socket, settings.client_index)
        self._key = SigningKey(settings.key or settings.folder / OWN_KEY_FILE)
        elements = partial(largest_state, settings.folder)
        self._first, *self._others = [
            GatewayEndpoint(address, settings.certificates, settings.insecure, elements)
            for address in settings.gateways
        ]
        self._reachability = Reachability(settings.folder)
        # a daemon: a signal ends the process while the thread waits for the trainer or the stream
        self._thread = threading.Thread(target=self._attach, name="stream", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while tasks are answered, or another try to attach will be made."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Attach, and stay attached."""
        self._thread.start()

    def is_finished(self) -> bool:
        """Return whether a gateway has said that the run is finished.

        Raises:
            SamaraError: if no gateway takes this client, for a reason that stays.
        """
        if self._failure:
            raise self._failure
        return self._is_finished

    def restart_if_due(self) -> str:
        """Return "": the thread tries again by itself."""
        return ""

    def stop(self) -> None:
        """Answer no further task."""
        self._stop.set()

    def _attach(self) -> None:
        try:
            self._is_finished = attach(
                self._board,
                self._key,
                self._first,
                self._stop,
                self._others,
                LONGEST_PAUSE,
                is_board=True,
                note=self._reachability.note,
            )
        except SamaraError as error:
            self._failure = error
