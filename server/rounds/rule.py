"""The rule by which the reports of a round become one update, built in or registered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ConfigError
from samara.shared.extensions import extension, is_extension
from samara.shared.layout import Layout

Gradients = NDArray[np.float64]


class Contribution(NamedTuple):
    """A report as a registered rule sees it.

    Attributes:
        client: client index.
        examples: number of examples that it counts; those that a client declares are bounded.
        gradients: clipped projected gradients, float64 [steps, queries], scaled as if all clients
            had taken the same number of steps; with a pool their sums by index, float64 [n].
        mean_loss: mean loss of its steps.
    """

    client: int
    examples: float
    gradients: Gradients
    mean_loss: float


RuleFunction = Callable[[Sequence[Contribution]], Gradients]
"""A registered rule: the contributions of a round, ascending by client, to the weights of their
updates in the sum that becomes the round's, float64 [clients]. Those of a mean sum to 1."""


@dataclass(frozen=True)
class Rule:
    """The rule by which reports become one update.

    Attributes:
        name: value of `aggregation.rule`.
        layout: layout of the trained numbers, which `multi-krum` and `centered-clipping` need
            unless seeds are shared: they compare the reports' updates, d numbers each, so a round
            costs the server one direction more per reported scalar, and 4·d bytes per client.
        function: a registered rule; None for those that are built in.
    """

    name: str = "mean"
    layout: Layout | None = None
    function: RuleFunction | None = None

    @classmethod
    def of(cls, name: str, layout: Layout) -> Self:
        """Return the rule of a name.

        Raises:
            ConfigError: if it is a registered one that this machine does not have.
        """
        return cls(name, layout, extension("aggregation", name) if is_extension(name) else None)

    def weights(self, contributions: Sequence[Contribution]) -> Gradients:
        """Return the weights that a registered rule gives to contributions, float64 [n].

        Raises:
            ConfigError: if they are not one finite number for each.
        """
        assert self.function is not None, "only registered rules have a function"
        order = sorted(range(len(contributions)), key=lambda index: contributions[index].client)
        given = np.asarray(self.function([contributions[index] for index in order]), np.float64)
        if given.shape != (len(order),) or not np.all(np.isfinite(given)):
            raise ConfigError(
                f"aggregation {self.name!r}: must give {len(order)} finite weights, gave {given}"
            )
        weights = np.empty(len(order))
        weights[order] = given
        return weights


MEAN = Rule()
