"""The verdict on a run: its model beside the best baseline, and what to try where it loses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from samara.shared.columns import BASE_RATE, GLOBAL, INTERCEPT, LOCAL
from samara.simulations.comparison.columns import BASELINES, MAJORITY, MEANINGS, Figures
from samara.simulations.comparison.measure import ACCURACY, Measure, figures_of, measure_of
from samara.simulations.comparison.statistics import Numbers

_LOST = (
    ("evaluate.best", ("true", "loss"), "to return to the best validated round"),
    ("adapter.layers", ("readout:auto", "readout"), "to train weights on one representation"),
    ("learning-rate", ("auto",), "or a tenth of the present one"),
    ("aggregation.rule", ("mean",), "if labels differ and no client may be hostile"),
    ("method", ("readout",), "for a private intercept and readout of every client"),
)
"""Settings to try where training has made the model worse: a key, the values that help, of which
the first is named, and what they are good for."""
_WITH_LABELS = ("adapter.layers", "method")
"""Those of these settings whose values need labels."""


@dataclass(frozen=True)
class Verdict:
    """The model that clients have in the end beside the best of the baselines.

    Attributes:
        name: column of the model.
        against: baseline with the best mean.
        differences: quality of each client less that of the baseline, float64 [clients].
        measure: what they are compared by.
        beyond: quality of each client less that of the intercept, which is no baseline but the
            simplest personal model, float64 [clients]; None where there is none.
    """

    name: str
    against: str
    differences: Numbers
    measure: Measure = ACCURACY
    beyond: Numbers | None = None

    @classmethod
    def of(cls, qualities: Mapping[str, Numbers], measure: Measure = ACCURACY) -> Self | None:
        """Return the verdict on the last column, or None if there is no baseline.

        Args:
            qualities: quality of every client by column, float64 [clients]; more is better.
            measure: what the clients are compared by.
        """
        name = list(qualities)[-1]
        baselines = [other for other in qualities if other in BASELINES and other != name]
        if not baselines:
            return None
        best = max(baselines, key=lambda other: qualities[other].mean())

        def over(other: str) -> Numbers:
            # Equal shares must tie, whatever binary fractions make of them.
            return np.round(qualities[name] - qualities[other], 12)

        beyond = over(INTERCEPT) if INTERCEPT in qualities and name != INTERCEPT else None
        return cls(name, best, over(best), measure, beyond)

    @property
    def loses(self) -> bool:
        """Return whether the mean over clients is below the baseline's, or the intercept's."""
        return any(
            own.mean() < 0 and not self._is_level(own)
            for own in (self.differences, self.beyond)
            if own is not None
        )

    def sentence(self) -> str:
        """Return the verdict in words."""
        clients = len(self.differences)
        gaining, losing = int((self.differences > 0).sum()), int((self.differences < 0).sum())
        text = (
            f"{self.name} is {self._place(self.differences)} {self.against}, the best baseline: "
            f"{gaining} of {clients} clients gain, {losing} lose"
        )
        if self.beyond is None:
            return text
        alone = f"{INTERCEPT} ({MEANINGS[INTERCEPT]}), the simplest personal model"
        return f"{text}; it is {self._place(self.beyond)} {alone}"

    def _place(self, differences: Numbers) -> str:
        """Return where clients stand in the mean, such as 2.7 points above."""
        if self._is_level(differences):
            return "level with"
        mean, measure = differences.mean(), self.measure
        side = measure.worse if mean < 0 else measure.better
        return f"{measure.size(abs(mean))} {measure.gap} {side}"

    def _is_level(self, differences: Numbers) -> bool:
        """Return whether the mean difference is 0 as it is shown."""
        return not float(self.measure.size(abs(differences.mean())))

    def what_to_try(self, config: Mapping[str, Any]) -> str:
        """Return settings to try where the model loses, of those that the run did not have.

        Args:
            config: settings of the run by dotted key.
        """
        if self.differences.mean() >= 0:
            advice = (
                "more training examples of each client, or adapter.layers = top:1, with which the "
                f"{INTERCEPT} is all that is private"
            )
        elif self.against == GLOBAL:
            advice = "method = global, or lower personal.rounds and personal.learning-rate"
        elif self.against == LOCAL:
            advice = "method = local or ditto, or more rounds"
        elif self.against in (MAJORITY, BASE_RATE):
            advice = (
                "method = readout, whose private intercept is a client's base rate, and look at "
                "macro-F1: here labels say more than texts"
            )
        else:
            settings = [
                f"{key} = {helpful[0]} ({why})"
                for key, helpful, why in _LOST
                if self.measure is ACCURACY or key not in _WITH_LABELS
                if str(config.get(key)).lower() not in helpful
            ]
            advice = "; ".join([*settings, "more training examples"])
        return f"Try {advice}; samara simulate SCENARIO --sweep FILE searches on validation."


def verdict_of(columns: Mapping[str, Figures]) -> Verdict | None:
    """Return the verdict on the last of a run's columns, over the clients that have all of them.

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
