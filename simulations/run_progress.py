"""The share of a run's expected time that has passed, by the messages that were answered. Pure."""

from collections import Counter

from samara.shared.wire import PERSONAL_ACTION
from samara.simulations.run_cost import RunCost, RunSize

PERSONAL = f"evaluate.{PERSONAL_ACTION}"
"""The type of the messages that compare personal models."""
PLAN = "plan"
"""The event of the log line that has a run's progress, an object of this module's class."""


class RunProgress:
    """The expected seconds of a run that have passed, from its plan on.

    Args:
        size: counts of the run.
        cost: expected cost of the run.

    Attributes:
        cost: expected cost of the run.
        total: expected seconds of the whole run.
        done: expected seconds of what has been done.
    """

    def __init__(self, size: RunSize, cost: RunCost) -> None:
        self._size, self.cost = size, cost
        self.total, self.done = cost.total, cost.loading
        self._answered: Counter[tuple[str, int]] = Counter()

    def answer(self, message_type: str, client: int) -> float:
        """Count an answered message; returns the seconds done."""
        cost = self.cost
        if message_type == PERSONAL:
            self.done = max(self.done, self.total - cost.report - cost.personal)
        before = self._answered[message_type, client]
        self._answered[message_type, client] += 1
        self.done = min(self.total, self.done + self._share(message_type, before))
        return self.done

    def end_round(self, number: int, rounds: int) -> float:
        """Note that a round has ended, also one before a run was continued; returns the seconds."""
        cost = self.cost
        reached = cost.loading + (cost.rounds + cost.evaluations) * min(1.0, number / rounds)
        self.done = max(self.done, reached)
        return self.done

    def _share(self, message_type: str, before: int) -> float:
        """Return the seconds of a client's message, after some of its type."""
        size, cost = self._size, self.cost
        if message_type == "train":
            first = cost.training_pass / size.clients if not before else 0.0
            return first + cost.rounds / max(1, size.reports)
        if message_type == "evaluate":
            passes = (cost.validation_pass, cost.test_pass)
            first = passes[before] / size.clients if before < len(passes) else 0.0
            evaluations = (size.validations + size.tests) * size.clients
            return first + (cost.first_evaluations + cost.evaluations) / max(1, evaluations)
        if message_type == PERSONAL:
            return cost.personal / (size.clients * (1 + (size.test > 0)))
        return 0.0
