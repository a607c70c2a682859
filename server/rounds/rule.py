"""Aggregation rules: built-in rules and registered rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import ConfigError
from samara.shared.extensions import extension, is_extension
from samara.shared.protocol.layout import Layout

Gradients = NDArray[np.float64]


class Contribution(NamedTuple):
    """A report in the form that registered rules receive.

    Attributes:
        client: client index.
        examples: the client's number of examples, capped, and multiplied by the staleness weight of
            a late report.
        gradients: clipped projected gradients, float64 [steps, queries], scaled by the mean number
            of steps over the client's number of steps. With a pool, one sum per pool index, float64
            [n].
        mean_loss: mean loss over the client's steps.
    """

    client: int
    examples: float
    gradients: Gradients
    mean_loss: float


RuleFunction = Callable[[Sequence[Contribution]], Gradients]
"""A registered rule, which maps a round's contributions to weights, float64 [clients].

The contributions are sorted by client. The round's update is the sum of the clients' updates with
these weights. It is a mean of the updates if the weights have the sum 1.
"""


@dataclass(frozen=True)
class Rule:
    """An aggregation rule.

    Attributes:
        name: value of `aggregation.rule`.
        layout: layout of the d trained numbers. Without shared seeds, `multi-krum` and
            `centered-clipping` compare whole updates and need the layout. For this comparison, the
            server generates the direction of every reported scalar and needs 4·d bytes per client.
        function: the registered function; None for built-in rules.
    """

    name: str = "mean"
    layout: Layout | None = None
    function: RuleFunction | None = None

    @classmethod
    def of(cls, name: str, layout: Layout) -> Self:
        """Return the rule of this name.

        Raises:
            ConfigError: if a registered rule is not installed on this machine.
        """
        return cls(name, layout, extension("aggregation", name) if is_extension(name) else None)

    def weights(self, contributions: Sequence[Contribution]) -> Gradients:
        """Return the weights of a registered rule for contributions, float64 [contributions].

        Raises:
            ConfigError: if the rule does not return one finite number for each contribution.
        """
        assert self.function is not None, "only registered rules have a function"
        order = sorted(range(len(contributions)), key=lambda index: contributions[index].client)
        given = np.asarray(self.function([contributions[index] for index in order]), np.float64)
        if given.shape != (len(order),) or not np.all(np.isfinite(given)):
            raise ConfigError(
                f"aggregation.rule {self.name!r}: returned {given}; the rule must return "
                f"{len(order)} finite weights"
            )
        weights = np.empty(len(order))
        weights[order] = given
        return weights


MEAN = Rule()
