"""The thread in which a phone computes, answering messages between private rounds."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from samara.client.forward.turns import checked_passes
from samara.client.trainer.idle_work import IdleWork, InterruptionError
from samara.devices.phone.reference_client.phone import Phone
from samara.shared.proto.trainer_pb2 import Task, TaskKind

_T = TypeVar("_T")


class PhoneWorker:
    """A phone whose messages interrupt its private rounds before the program's next call.

    Hellos do not interrupt private rounds, because hellos arrive every few seconds and need no
    program call.

    Args:
        phone: the phone; only this worker's thread computes with it.
    """

    def __init__(self, phone: Phone) -> None:
        self._phone = phone
        self._end = threading.Event()
        self._worker = ThreadPoolExecutor(1, "phone")
        self._idle = IdleWork(self._worker, phone.take_private_rounds)

    def begin(self) -> None:
        """Start the private rounds that are due."""
        self._idle.begin()

    def finish(self) -> None:
        """Take all private rounds that are due.

        Raises:
            InterruptionError: if the worker is closed meanwhile.
            SamaraError: as in `Phone.take_private_rounds`.
        """
        self._work(self._phone.take_private_rounds)

    def close(self) -> None:
        """Stop the worker before the next call of the phone's exported program."""
        self._end.set()
        self._idle.close()
        self._worker.shutdown(cancel_futures=True)

    def answer(self, task: Task) -> bytes:
        """Return the reply to a task; see `Phone.answer`.

        Raises:
            InterruptionError: if the worker is closed meanwhile.
        """
        if task.kind in (TaskKind.HELLO, TaskKind.REFUSED):
            return self._phone.answer(task)
        return self._work(lambda: self._phone.answer(task))

    def _work(self, act: Callable[[], _T]) -> _T:
        """Run a function in the worker's thread, and return its result.

        Raises:
            InterruptionError: if the worker is closed meanwhile.
        """

        def work() -> _T:
            with checked_passes(self._check):
                return act()

        with self._idle.message():
            return self._worker.submit(work).result()

    def _check(self) -> None:
        if self._end.is_set():
            raise InterruptionError
