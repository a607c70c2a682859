"""Turns of forward passes: a device trains pass by pass, and a question goes before the next one.

Training and questions use one model, so only one of them may run it at a time. Work that may be
interrupted takes a turn for each forward pass (`forward_pass`). Whoever asks waits at most until
the pass that is running ends; training goes on when no question is open. What training computes
does not depend on the questions in between.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

TurnTaker = Callable[[], AbstractContextManager[None]]
"""Returns the context that one forward pass runs in."""

_taker: ContextVar[TurnTaker] = ContextVar("turn taker", default=nullcontext)


def forward_pass() -> AbstractContextManager[None]:
    """Return the context that a forward pass of this thread runs in: it waits for its turn."""
    return _taker.get()()


def take_turns(taker: TurnTaker) -> None:
    """Have all forward passes of this thread take turns from now on."""
    _taker.set(taker)


@contextmanager
def checked_passes(check: Callable[[], None]) -> Iterator[None]:
    """Have this thread call a function before each forward pass for as long as the context lasts.

    Args:
        check: function that raises an exception to end the work before its next pass.
    """
    taker = _taker.get()

    def taken_after_check() -> AbstractContextManager[None]:
        check()
        return taker()

    token = _taker.set(taken_after_check)
    try:
        yield
    finally:
        _taker.reset(token)


class Turns:
    """The turns of one thread that trains and of any number of questions, which go first.

    Args:
        before_training: function that is called before every pass of training; it may wait, or
            raise an error that ends what is computed.
    """

    def __init__(self, before_training: Callable[[], None] = lambda: None) -> None:
        self._before_training = before_training
        self._changed = threading.Condition()
        self._questions, self._training = 0, False

    @contextmanager
    def training_pass(self) -> Iterator[None]:
        """Wait until no question is open, and keep questions waiting for the one pass inside.

        A pass inside another one, by the same thread, belongs to its turn.
        """
        if self._training:
            yield
            return
        self._before_training()
        with self._changed:
            self._changed.wait_for(lambda: not self._questions)
            self._training = True
        try:
            yield
        finally:
            with self._changed:
                self._training = False
                self._changed.notify_all()

    @contextmanager
    def question(self) -> Iterator[None]:
        """Wait until the pass of training ends, and keep training waiting for what is inside."""
        with self._changed:
            self._questions += 1
            self._changed.wait_for(lambda: not self._training)
        try:
            yield
        finally:
            with self._changed:
                self._questions -= 1
                self._changed.notify_all()
