"""Pauses of a trainer while its device must rest.

A pause comes before a forward pass or before a slice of a replay.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samara.shared.errors import PausedError

log = logging.getLogger("samara.client")

_SECONDS_BETWEEN = 0.2


class Pauses:
    """Pauses of the thread that answers messages, before its forward passes and slices of replay.

    A pause only delays a pass and changes no result. If a pause lasts until the server no longer
    waits for the answer, the message is refused. If the server sends the message again, the work
    starts over.

    Args:
        reason: function that returns without delay the reason to pause now; empty for no pause.
        clock: function that returns monotonic seconds.
        wait: function that waits for a number of seconds.

    Attributes:
        reason: function that returns the reason to pause now; empty for no pause.
        seconds: total seconds of all pauses so far.
    """

    def __init__(
        self,
        reason: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.reason, self.seconds = reason, 0.0
        self._clock, self._wait = clock, wait
        self._until: float | None = None

    @contextmanager
    def message(self, deadline: float) -> Iterator[Callable[[], bool]]:
        """Allow pauses inside the context, in which the calling thread answers a message.

        Args:
            deadline: seconds that the server waits for the answer.

        Yields:
            A function that returns whether the server no longer waits.

        Raises:
            PausedError: if there is a reason to pause before the work begins.
        """
        if reason := self.reason():
            raise PausedError(f"paused: {reason}")
        self._until = until = self._clock() + deadline
        try:
            yield lambda: self._clock() >= until
        finally:
            self._until = None

    def before_pass(self) -> None:
        """Wait until there is no reason to pause; outside of `message`, return immediately.

        Raises:
            PausedError: if the pause lasts until the server no longer waits.
        """
        if self._until is None or not (reason := self.reason()):
            return
        begun = self._clock()
        log.info("pausing: %s", reason)
        while reason:
            now = self._clock()
            if now >= self._until:
                self.seconds += now - begun
                raise PausedError(
                    f"paused for {now - begun:.0f} s, longer than the server waits: {reason}"
                )
            self._wait(min(_SECONDS_BETWEEN, self._until - now))
            reason = self.reason()
        self.seconds += self._clock() - begun
        log.info("continuing after a pause of %.1f s", self._clock() - begun)
