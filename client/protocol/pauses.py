"""The pauses of a trainer between passes and slices of a replay, while its device must rest."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samara.shared.errors import PausedError

log = logging.getLogger("samara.client")

_SECONDS_BETWEEN = 0.2


class Pauses:
    """Pauses the thread that answers a message before its next forward pass or slice of a replay.

    A pause changes no result: the pass is taken later. If it lasts until the server no longer waits
    for the answer, the message is refused, and computed anew if it is sent again.

    Args:
        reason: function that gives the reason for pausing now, at once; empty if there is none.
        clock: function that returns monotonic seconds.
        wait: function that waits for so many seconds.

    Attributes:
        reason: function that gives the reason for pausing now.
        seconds: seconds of all pauses so far.
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
        """Answer a message in the block, by the thread that takes the forward passes.

        Args:
            deadline: seconds that the server waits for the answer.

        Yields:
            A function that returns whether the server no longer waits.

        Raises:
            PausedError: if work may not even begin.
        """
        if reason := self.reason():
            raise PausedError(f"paused: {reason}")
        self._until = until = self._clock() + deadline
        try:
            yield lambda: self._clock() >= until
        finally:
            self._until = None

    def before_pass(self) -> None:
        """Wait until no limit is exceeded; without a message, return at once.

        Raises:
            PausedError: if that lasts until the server no longer waits.
        """
        if self._until is None or not (reason := self.reason()):
            return
        begun = self._clock()
        log.info("pausing: %s", reason)
        while reason:
            now = self._clock()
            if now >= self._until:
                self.seconds += now - begun
                raise PausedError(f"paused for {now - begun:.0f} s, until too late: {reason}")
            self._wait(min(_SECONDS_BETWEEN, self._until - now))
            reason = self.reason()
        self.seconds += self._clock() - begun
        log.info("going on after a pause of %.1f s", self._clock() - begun)
