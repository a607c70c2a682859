"""The finished steps of an interrupted round, kept in memory until the round goes on."""

from typing import Generic, TypeVar

_Progress = TypeVar("_Progress")


class InterruptedSteps(Generic[_Progress]):
    """The progress of one client's round.

    What interrupts a round is an exception between two forward passes. The steps before it are not
    repeated if the same round is begun again with the same examples.
    """

    def __init__(self) -> None:
        self._token, self._examples = b"", object()
        self._progress: _Progress | None = None

    def resume(self, token: bytes, examples: object, beginning: _Progress) -> _Progress:
        """Return the progress of a round when it was interrupted, or its beginning.

        Args:
            token: token of the round's instruction, 8 bytes.
            examples: examples of the round; only the same object is the same.
            beginning: progress at the round's start, which the round's steps change.
        """
        if self._progress is None or self._token != token or self._examples is not examples:
            self._token, self._examples, self._progress = token, examples, beginning
        return self._progress
