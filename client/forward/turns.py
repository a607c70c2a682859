"""Turns of forward passes, in which a question comes before the next pass of training.

Training and questions use one model, and only one of them may run the model at a time.
Interruptible work takes a turn for each forward pass (`forward_pass`). A question waits at most
until the running pass ends. Training continues when no question is open. Questions do not change
the results of training.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

TurnTaker = Callable[[], AbstractContextManager[None]]
"""A function that returns the context of one forward pass."""

_taker: ContextVar[TurnTaker] = ContextVar("turn taker", default=nullcontext)


def forward_pass() -> AbstractContextManager[None]:
    """Return the context of a forward pass of this thread; entering it waits for a turn."""
    return _taker.get()()


def take_turns(taker: TurnTaker) -> None:
    """Make this thread use a context returned by `taker` for every forward pass from now on."""
    _taker.set(taker)


@contextmanager
def checked_passes(check: Callable[[], None]) -> Iterator[None]:
    """Make this thread call a function before each forward pass inside the context.

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
    """Turns for one training thread and any number of questions, which go first.

    Args:
        before_training: function called before every training pass; it may wait, or raise an error
            that ends the training.
    """

    def __init__(self, before_training: Callable[[], None] = lambda: None) -> None:
        self._before_training = before_training
        self._changed = threading.Condition()
        self._questions, self._training = 0, False

    @contextmanager
    def training_pass(self) -> Iterator[None]:
        """Wait until no question is open, and make new questions wait inside the context.

        A nested pass of the same thread belongs to the outer pass's turn.
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
        """Wait until the running training pass ends, and make training wait inside the context."""
        with self._changed:
            self._questions += 1
            self._changed.wait_for(lambda: not self._training)
        try:
            yield
        finally:
            with self._changed:
                self._questions -= 1
                self._changed.notify_all()
