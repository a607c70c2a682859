"""The elapsed part of a run's expected time, derived from answered messages."""

from collections import Counter

from samara.shared.protocol.wire import PERSONAL_ACTION
from samara.simulations.planning.run_cost import RunCost, RunSize

PERSONAL = f"evaluate.{PERSONAL_ACTION}"
"""Type of the messages that compare personal models."""
PLAN = "plan"
"""Name of the log event that contains a `RunProgress` object."""


class RunProgress:
    """The elapsed part of a run's expected seconds.

    Args:
        size: counts of the run.
        cost: expected cost of the run.

    Attributes:
        cost: expected cost of the run.
        total: expected seconds of the whole run.
        done: expected seconds of the work completed so far.
    """

    def __init__(self, size: RunSize, cost: RunCost) -> None:
        self._size = size
        self.cost = cost
        self.total = cost.total
        self.done = cost.loading + cost.form
        self._answered: Counter[tuple[str, int]] = Counter()

    def answer(self, message_type: str, client: int) -> float:
        """Count an answered message of a client, and return `done`."""
        cost = self.cost
        if message_type == PERSONAL:
            self.done = max(self.done, self.total - cost.report - cost.personal)
        before = self._answered[message_type, client]
        self._answered[message_type, client] += 1
        self.done = min(self.total, self.done + self._share(message_type, before))
        return self.done

    def end_round(self, number: int, rounds: int) -> float:
        """Record the end of a round, and return `done`.

        The function is also called for rounds that ended before the run was continued.
        """
        cost = self.cost
        reached = (
            cost.loading + cost.form + (cost.rounds + cost.evaluations) * min(1.0, number / rounds)
        )
        self.done = max(self.done, reached)
        return self.done

    def _share(self, message_type: str, before: int) -> float:
        """Return the expected seconds of a client's message.

        Args:
            message_type: type of the message.
            before: number of the client's earlier messages of this type.
        """
        size = self._size
        cost = self.cost
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
