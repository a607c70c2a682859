"""Registration of user code that settings name: rules, estimators, objectives and others.

>>> import numpy as np
>>> import samara
>>> def newest(contributions):
...     return np.eye(len(contributions))[-1]
>>> samara.register.aggregation("newest", newest, version="1")
>>> samara.RunConfig.of({"aggregation.rule": "newest"}, "an example").aggregation.rule
'newest@6b86b273ff34'

A registration holds for this process. For the command line, and for clients in other processes, a
package declares an entry point in the group ``samara.aggregation`` (``samara.estimator``,
``samara.objective``, ``samara.partition``, ``samara.personalization``, ``samara.task``) with the
same name. Settings store the name with a hash of the source, which is part of the run id; a machine
that lacks the object, or has one with another hash, refuses the run and names the object. A server
can only request code that the owner of the machine has installed for Samara.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from samara.client.estimators.prge import (
    Estimator,
    EstimatorFunction,
    GradientEstimate,
    LossRequest,
)
from samara.client.personal.softmax_fit import Examples, Personalization, SoftmaxFit
from samara.server.rounds.rule import Contribution, RuleFunction
from samara.shared.extensions import register
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask, GenerationTask, Task
from samara.shared.tasks.objectives import Objective
from samara.shared.tasks.rows import Example

__all__ = [
    "ChoiceTask",
    "ClassificationTask",
    "Contribution",
    "Estimator",
    "Example",
    "Examples",
    "GenerationTask",
    "GradientEstimate",
    "LossRequest",
    "SoftmaxFit",
    "aggregation",
    "estimator",
    "objective",
    "partition",
    "personalization",
    "task",
]

PartitionFunction = Callable[[Sequence[Example], int, float, int], NDArray[np.int64]]
"""A function that divides examples among clients. Given the examples, the number of clients,
`data.alpha` and `data.seed`, it returns the client of each example, or −1 for none, int64
[examples].
"""


def aggregation(name: str, rule: RuleFunction, version: str = "") -> None:
    """Register a rule for the setting ``aggregation.rule``.

    Args:
        name: lower-case letters, digits and hyphens.
        rule: function of a round's contributions, ascending by client, that returns the weight of
            each client's update, float64 [clients]. Contributions are unchecked numbers from
            clients, so a rule that must withstand hostile clients has to bound them.
        version: text that identifies this version of the object, instead of its source.

    Raises:
        ConfigError: if the name is invalid, or there is neither source nor version.
    """
    register("aggregation", name, rule, version)


def estimator(name: str, function: EstimatorFunction, version: str = "") -> None:
    """Register an estimator of projected gradients for the setting ``gradients``.

    Args:
        name: lower-case letters, digits and hyphens.
        function: generator function of seeds uint64 [q], batch int64 [B] and ε. It yields
            `LossRequest`, is sent the losses, and returns a `GradientEstimate`. If the step size is
            estimated, Samara measures the curvature by further requests.
        version: text that identifies this version of the object, instead of its source.

    Raises:
        ConfigError: if the name is invalid, or there is neither source nor version.
    """
    register("estimator", name, function, version)


def objective(name: str, function: Objective, version: str = "") -> None:
    """Register a loss for the setting ``objective``.

    Args:
        name: lower-case letters, digits and hyphens.
        function: function of scores float32 [P, rows, labels] and labels int64 [rows] that returns
            the loss of each of P perturbations, float64 [P]. It needs no derivative. A row's scores
            are defined up to an additive constant, so a probability needs a softmax.
        version: text that identifies this version of the object, instead of its source.

    Raises:
        ConfigError: if the name is invalid, or there is neither source nor version.
    """
    register("objective", name, function, version)


def partition(name: str, function: PartitionFunction, version: str = "") -> None:
    """Register a division of the examples for the setting ``data.partition``.

    Args:
        name: lower-case letters, digits and hyphens.
        function: function of all examples, the number of clients, `data.alpha` and `data.seed` that
            returns the client of each example, or −1 for none, int64 [examples].
        version: text that identifies this version of the object, instead of its source.

    Raises:
        ConfigError: if the name is invalid, or there is neither source nor version.
    """
    register("partition", name, function, version)


def personalization(name: str, method: Personalization, version: str = "") -> None:
    """Register a personalization for the setting ``method``.

    All rounds train the federation's model. Then every client calls the method once, and keeps the
    returned numbers as its private part. `adapter.label-bias` must be true.

    Args:
        name: lower-case letters, digits and hyphens.
        method: function of the client's training examples, with scores of the federation's model,
            that returns the private numbers to add to that model.
        version: text that identifies this version of the object, instead of its source.

    Raises:
        ConfigError: if the name is invalid, or there is neither source nor version.
    """
    register("personalization", name, method, version)


def task(name: str, task: Task) -> None:
    """Register a task for the setting ``task``; a task file has the same effect without Python.

    Args:
        name: lower-case letters, digits and hyphens; not the name of a shipped task.
        task: a classification, a choice or a generation.

    Raises:
        ConfigError: if the name is invalid.
    """
    register("task", name, task)
