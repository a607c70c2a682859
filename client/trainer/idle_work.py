"""The work of a trainer between messages: private rounds, which every message interrupts.

Messages and idle work share the trainer's single working thread. An arriving message ends idle work
before its next forward pass. The work continues when all messages are answered.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from samara.client.forward.turns import checked_passes
from samara.shared.errors import SamaraError

log = logging.getLogger("samara.client")

SECONDS_BETWEEN = 10.0
"""Seconds between checks for idle work, which new data or the end of a pause may allow."""


class InterruptionError(Exception):
    """Exception that ends idle work because of a message, a device limit, or the trainer's end."""


class IdleWork:
    """Idle work on a trainer's working thread.

    Args:
        worker: executor with one thread, which answers the messages.
        work: function that does the pending work, called on the worker's thread. An
            `InterruptionError` may end the function before any forward pass. The function is then
            called again later.
        pause_reason: function that returns without delay the current reason for a pause; empty for
            no pause. It is called before every forward pass.
        seconds: interval between checks for pending work.
    """

    def __init__(
        self,
        worker: Executor,
        work: Callable[[], None],
        pause_reason: Callable[[], str] = lambda: "",
        seconds: float = SECONDS_BETWEEN,
    ) -> None:
        self._worker, self._work, self._pause_reason = worker, work, pause_reason
        self._lock, self._end = threading.Lock(), threading.Event()
        self._messages, self._is_queued = 0, False
        self._seconds = seconds
        self._timer = threading.Thread(target=self._wake_regularly, name="idle", daemon=True)

    def begin(self) -> None:
        """Start checking for pending work."""
        self._timer.start()
        self._wake()

    def close(self) -> None:
        """End the current work before its next forward pass, and start no more work."""
        self._end.set()
        if self._timer.is_alive():
            self._timer.join()

    @contextmanager
    def message(self) -> Iterator[None]:
        """Keep the working thread free for a message inside the context."""
        with self._lock:
            self._messages += 1
        try:
            yield
        finally:
            with self._lock:
                self._messages -= 1
            self._wake()

    def _wake_regularly(self) -> None:
        while not self._end.wait(self._seconds):
            self._wake()

    def _wake(self) -> None:
        with self._lock:
            if self._is_queued or self._messages or self._end.is_set():
                return
            self._is_queued = True
        self._worker.submit(self._run)

    def _run(self) -> None:
        try:
            with checked_passes(self._check):
                self._check()
                self._work()
        except InterruptionError:
            pass
        except SamaraError as error:
            log.warning("the private rounds failed: %s", error)
        except Exception:
            log.exception("the private rounds failed")
        finally:
            with self._lock:
                self._is_queued = False

    def _check(self) -> None:
        if self._messages or self._end.is_set() or self._pause_reason():
            raise InterruptionError
