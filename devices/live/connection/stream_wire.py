"""A client's wire through a stream to a gateway, which sends tasks over the stream."""

import threading
from functools import partial

from samara.devices.live.connection.board import Board
from samara.devices.live.connection.gateway_endpoint import GatewayEndpoint
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.live.connection.received_bytes import largest_state
from samara.devices.live.keys import OWN_KEY_FILE
from samara.devices.live.server_contact import Reachability
from samara.devices.live.settings import ClientSettings
from samara.shared.errors import SamaraError
from samara.shared.protocol.signing import SigningKey

LONGEST_PAUSE = 60.0
"""Maximum delay in seconds before a board retries a gateway, without the random part."""


class StreamWire:
    """A thread that stays attached to one of the client's gateways and answers its tasks.

    Args:
        settings: settings of the client.

    Raises:
        SamaraError: if the key or the certificate cannot be used.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._stop = threading.Event()
        self._is_finished = False
        self._failure: SamaraError | None = None
        self._board = Board(settings.socket, settings.client_index)
        self._key = SigningKey(settings.key or settings.folder / OWN_KEY_FILE)
        elements = partial(largest_state, settings.folder)
        self._first, *self._others = [
            GatewayEndpoint(address, settings.certificates, settings.insecure, elements)
            for address in settings.gateways
        ]
        self._reachability = Reachability(settings.folder)
        # a daemon thread: a signal must end the process while it waits for the trainer or the
        # stream
        self._thread = threading.Thread(target=self._attach, name="stream", daemon=True)

    @property
    def is_alive(self) -> bool:
        """True while the thread answers tasks or will try again to attach."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Attach, and stay attached."""
        self._thread.start()

    def is_finished(self) -> bool:
        """Return whether a gateway has reported that the run is finished.

        Raises:
            SamaraError: if no gateway accepts this client, for a permanent reason.
        """
        if self._failure:
            raise self._failure
        return self._is_finished

    def restart_if_due(self) -> str:
        """Do nothing and return "", because the thread reopens a broken stream itself."""
        return ""

    def stop(self) -> None:
        """Stop answering tasks."""
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
