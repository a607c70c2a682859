"""The thread in which a phone computes: answers to messages, and private rounds between them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from samara.client.forward.turns import checked_passes
from samara.client.protocol.idle_work import IdleWork, InterruptionError
from samara.devices.phone.reference_client.phone import Phone
from samara.shared.ledger.records import CatchUp

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PhoneWorker:
    """A phone whose messages interrupt its private rounds before the program's next call.

    Hellos come every few seconds, need no computing, and interrupt nothing.

    Args:
        phone: the phone; only this worker's thread computes with it.
    """

    def __init__(self, phone: Phone) -> None:
        self._phone, self._end = phone, threading.Event()
        self._worker = ThreadPoolExecutor(1, "phone")
        self._idle = IdleWork(self._worker, phone.take_private_rounds)

    def begin(self) -> None:
        """Begin to take private rounds that are due."""
        self._idle.begin()

    def finish(self) -> None:
        """Take the private rounds that are due to their end.

        Raises:
            InterruptionError: if the worker is closed meanwhile.
            SamaraError: those of `Phone.take_private_rounds`.
        """
        self._work(self._phone.take_private_rounds)

    def close(self) -> None:
        """End all computing before the program's next call."""
        self._end.set()
        self._idle.close()
        self._worker.shutdown(cancel_futures=True)

    def hello(self, settings: bytes) -> bytes:
        """Return the hello of the phone; see `Phone.hello`."""
        return self._phone.hello(settings)

    def mask(self, frame: bytes, settings: bytes) -> bytes:
        """Return the answer to a masking frame; see `Phone.mask`."""
        return self._work(self._phone.mask, frame, settings)

    def train(self, instruction: bytes, catch_up: CatchUp, settings: bytes, shares: bytes) -> bytes:
        """Return the reply to a train instruction; see `Phone.train`."""
        return self._work(self._phone.train, instruction, catch_up, settings, shares)

    def evaluate(
        self, instruction: bytes, catch_up: CatchUp, settings: bytes, personal: bool
    ) -> bytes:
        """Return the reply to an evaluate instruction; see `Phone.evaluate`."""
        return self._work(self._phone.evaluate, instruction, catch_up, settings, personal)

    def receive_blob(self, part: bytes, settings: bytes) -> bytes:
        """Return the refusal of a blob part."""
        return self._work(self._phone.receive_blob, part)

    def hear_refusal(self, refusal: bytes) -> bytes:
        """Log why the server refuses the phone; see `Phone.hear_refusal`."""
        return self._phone.hear_refusal(refusal)

    def _work(self, method: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Call a method in the worker's thread, and return what it returns.

        Raises:
            InterruptionError: if the worker is closed meanwhile.
        """

        def work() -> _T:
            with checked_passes(self._check):
                return method(*arguments, **named)

        with self._idle.message():
            return self._worker.submit(work).result()

    def _check(self) -> None:
        if self._end.is_set():
            raise InterruptionError
