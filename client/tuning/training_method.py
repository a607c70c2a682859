"""The interface between the loop of a tuning run and a method that trains step by step."""

from typing import Any, Protocol

from samara.client.tuning.tuning_setup import EvaluationResult, TaskSplit
from samara.shared.protocol.start import Start


class TrainingMethod(Protocol):
    """Protocol of methods that train step by step, and that another process can continue."""

    @property
    def steps(self) -> int:
        """Number of steps taken."""

    @property
    def warning(self) -> str:
        """Warning about the files from which the run continues; empty without a warning."""

    def step(self) -> float:
        """Take the next step and return its mean loss.

        Raises:
            TrainingError: if a loss is not finite.
        """

    def evaluate(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate the model's current state on a split."""

    def save(self) -> None:
        """Save all data that another process needs to continue from the current step."""

    def keep_best(self) -> None:
        """Keep the current state as the best state so far."""

    def restore_best(self, step: int) -> None:
        """Restore the state of the last call of `keep_best`.

        Args:
            step: number of steps taken at that call.
        """

    def digest(self) -> str:
        """Return a hash of the trained numbers, in hexadecimal."""

    def make_start(self) -> Start | None:
        """Return the current weights as a federation's start; None if the space has no start.

        Raises:
            ModelError: if a weight is too large for a start.
        """

    def emulated_cost(self) -> dict[str, Any]:
        """Return the seconds and bytes of an emulated accelerator; empty without one."""

    def export(self) -> None:
        """Write the current model if the method exports models; called at the end of a run."""

    def close(self) -> None:
        """Close the files of the run, so that another process can continue it."""
