"""Admission of keys to a gateway, and the error that ends a stream."""

import asyncio
from collections.abc import Callable

import grpc

from samara.shared.errors import DeviceError
from samara.shared.network.log_budget import LogBudget
from samara.shared.network.rate_limit import RateLimit, network_of

MAX_ASKED = 4
"""Maximum number of simultaneous requests to the server about new keys."""
NEW_KEYS_PER_MINUTE = 6
"""Maximum number of requests to the server about new keys, per network address and minute."""


class RejectionError(Exception):
    """An error that ends a stream, with a status code and a reason for the other end."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Admission:
    """Decides which keys may attach to the gateway.

    Args:
        admitted: function that returns whether a public key (PEM) may attach.
        registered: function that asks the server about a key that `admitted` rejects; it runs in a
            separate thread. None rejects such a key without asking.
        lines: limit on log lines about unknown connections.
    """

    def __init__(
        self,
        admitted: Callable[[bytes], bool],
        registered: Callable[[bytes], bool] | None,
        lines: LogBudget,
    ) -> None:
        self._lines = lines
        self._admitted = admitted
        self._registered = registered
        self._asked = 0
        self._new_keys = RateLimit(NEW_KEYS_PER_MINUTE)

    async def check(self, public_key: bytes, host: str) -> None:
        """Check that a key may attach.

        Args:
            public_key: public key, PEM. The other end has proved that it owns the private key.
            host: address of the other end.

        Raises:
            RejectionError: if the key may not attach, or if the server cannot be asked at present.
        """
        if self._admitted(public_key):
            return
        denied = grpc.StatusCode.PERMISSION_DENIED
        if self._registered is None:
            raise RejectionError(
                denied, "this key is not admitted; add it to the gateway's --phones"
            )
        later = grpc.StatusCode.RESOURCE_EXHAUSTED
        if self._asked >= MAX_ASKED:
            raise RejectionError(later, "too many new keys at once; try again later")
        if not self._new_keys.admits(network_of(host)):
            raise RejectionError(
                later, "too many new keys from this address; try again in a minute"
            )
        self._asked += 1
        try:
            if not await asyncio.to_thread(self._registered, public_key):
                raise RejectionError(
                    denied,
                    "this key is not registered at the server; join the run with an invitation",
                )
        except DeviceError as error:
            self._lines.warn("new phones", "are not admitted at present: %s", error)
            raise RejectionError(
                later, "the gateway cannot ask the server about this key; try again later"
            ) from error
        finally:
            self._asked -= 1
