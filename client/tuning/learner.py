"""What the loop of a tuning run asks of a method that takes steps."""

from typing import Protocol

from client.tuning.tuning_setup import Figures, Split


class Learner(Protocol):
    """Trains a model step by step; what it needs to go on outlives the process."""

    @property
    def steps(self) -> int:
        """Steps taken."""

    @property
    def note(self) -> str:
        """What the operator should know about how it was found; mostly empty."""

    def step(self) -> float:
        """Take the next step; returns the mean loss of what was tried.

        Raises:
            TrainingError: if a loss is not finite.
        """

    def figures(self, split: Split) -> Figures:
        """How good it is now."""

    def save(self) -> None:
        """A process that begins after this one was killed shall begin here, or later."""

    def keep(self) -> None:
        """What it is now is the best so far."""

    def recall(self, step: int) -> None:
        """Be what it was after an earlier step, the last at which it was kept."""

    def digest(self) -> str:
        """A hash of what is trained, in hexadecimal."""

    def close(self) -> None:
        """Let another process go on."""
