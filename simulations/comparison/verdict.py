"""The verdict on a run: a comparison of its model with the best other column, and remedies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from samara.shared.terms.columns import BASE_RATE, GLOBAL, INTERCEPT, LOCAL
from samara.shared.terms.run_terms import federated_rounds
from samara.simulations.comparison.columns import COMMON, MAJORITY, MEANINGS, Figures
from samara.simulations.comparison.measure import ACCURACY, Measure, figures_of, measure_of
from samara.simulations.comparison.statistics import Difference, Numbers, paired_difference

_LOST = (
    ("evaluate.best", ("true", "loss"), "to return to the best validated round"),
    ("adapter.layers", ("readout:auto", "readout"), "to train weights on one representation"),
    ("learning-rate", ("auto",), "or a tenth of the current rate"),
    ("aggregation.rule", ("mean",), "if labels differ and no client may be hostile"),
    ("method", ("readout",), "for a private intercept and readout of every client"),
)
"""Settings to try if training has made the model worse.

Each entry consists of a key, its helpful values with the recommended value first, and a reason.
"""
_WITH_LABELS = ("adapter.layers", "method")
"""Keys of `_LOST` whose helpful values need a task with labels."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of the clients' final model with the best other column.

    Attributes:
        name: column of the model.
        against: other column with the best mean, either a baseline or a simpler personal model.
        difference: each client's quality in the model's column minus its quality in the other
            column, with an interval.
        measure: measure of the comparison.
    """

    name: str
    against: str
    difference: Difference
    measure: Measure = ACCURACY

    @classmethod
    def of(cls, qualities: Mapping[str, Numbers], measure: Measure = ACCURACY) -> Self | None:
        """Return the verdict on the last column; None without another column to compare with.

        Args:
            qualities: quality of every client by column, float64 [clients]; higher is better.
            measure: measure of the comparison.
        """
        *others, name = qualities
        others = [other for other in others if other in COMMON]
        if not others:
            return None
        best = max(others, key=lambda other: qualities[other].mean())
        return cls(name, best, paired_difference(qualities[name], qualities[best]), measure)

    @property
    def loses(self) -> bool:
        """Return whether the mean over clients is below the mean of the best other column."""
        return self.difference.mean < 0 and float(self.measure.size(abs(self.difference.mean))) > 0

    def sentence(self) -> str:
        """Return the verdict as a sentence, with the interval of the difference."""
        own = self.difference
        clients = len(self.difference.by_client)
        meaning = f" ({MEANINGS[self.against]})" if self.against == INTERCEPT else ""
        return (
            f"{self.name} is {self.measure.place(own.mean)} {self.against}{meaning}, the best "
            f"other column ({describe_interval(own.low, own.high, self.measure, 'clients')}): "
            f"{own.gaining} of {clients} clients gain, {own.losing} lose"
        )

    def what_to_try(self, config: Mapping[str, Any]) -> str:
        """Return remedies for a losing model, from settings that the run did not use.

        Args:
            config: settings of the run by dotted key.
        """
        if self.against == INTERCEPT:
            advice = (
                "more training examples for each client, or adapter.layers = top:1, with which the "
                f"private part is only the {INTERCEPT}"
            )
        elif self.against == GLOBAL:
            advice = "method = global"
            if _has_private_rounds(config):
                advice += ", or lower personal.rounds and personal.learning-rate"
        elif self.against == LOCAL:
            advice = "method = local or ditto, or more rounds"
        elif self.against in (MAJORITY, BASE_RATE) and config.get("method") == "readout":
            advice = "more training examples for each client, and compare macro-F1, because "
            advice += "labels predict more than texts in these data"
        elif self.against in (MAJORITY, BASE_RATE):
            advice = (
                "method = readout, whose private intercept is a client's base rate, and compare "
                "macro-F1, because labels predict more than texts in these data"
            )
        else:
            settings = [
                f"{key} = {helpful[0]} ({why})"
                for key, helpful, why in _LOST
                if self.measure is ACCURACY or key not in _WITH_LABELS
                if str(config.get(key)).lower() not in helpful
            ]
            advice = "; ".join([*settings, "more training examples"])
        return f"Try {advice}; `samara simulate SCENARIO --sweep FILE` searches settings."


def _has_private_rounds(config: Mapping[str, Any]) -> bool:
    rounds = int(config.get("rounds", 0))
    private = int(config.get("personal.rounds", 0))
    return federated_rounds(str(config.get("method")), rounds, private) < rounds + private


def describe_interval(low: float, high: float, measure: Measure, over: str) -> str:
    """Describe the interval of a difference, and whether it shows a difference.

    Args:
        low: lower end of the interval; NaN without an interval.
        high: upper end of the interval; NaN without an interval.
        measure: measure of the difference.
        over: units that the interval covers, such as clients.
    """
    if math.isnan(low):
        return f"without an interval, because there is only one of the {over}"
    shown = "" if low > 0 or high < 0 else ", which shows no difference"
    return f"95 % interval {measure.gain(low)} to {measure.gain(high)} over {over}{shown}"


def verdict_of(columns: Mapping[str, Figures]) -> Verdict | None:
    """Return the comparison of a run's final model, its last column, with the best other column.

    Only clients that have all columns are used.

    Args:
        columns: columns from `client_columns`.
    """
    clients = sorted(set.intersection(*(set(figures) for figures in columns.values())))
    if not clients:
        return None
    qualities = {
        name: np.array([figures_of(figures[client]).quality for client in clients])
        for name, figures in columns.items()
    }
    return Verdict.of(
        qualities, measure_of(own for its in columns.values() for own in its.values())
    )
