"""Registration of user code that settings can name, such as aggregation rules and objectives.

>>> import numpy as np
>>> import samara
>>> def newest(contributions):
...     return np.eye(len(contributions))[-1]
>>> samara.register.aggregation("newest", newest, version="1")
>>> samara.RunConfig.of({"aggregation.rule": "newest"}, "an example").aggregation.rule
'newest@6b86b273ff34'

A registration applies to this process. For the command line, and for clients in other processes, a
package declares an entry point with the same name in the group ``samara.aggregation`` (or
``samara.estimator``, ``samara.objective``, ``samara.partition``, ``samara.personalization``,
``samara.task``). Settings store the name with a hash of the source, which is part of the run id. A
machine without an object of this name and hash refuses the run, with a message that names the
object. A server can request only code that the machine's owner has installed for Samara.
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
"""A function that divides examples among clients.

Its arguments are the examples, the number of clients, `data.alpha` and `data.seed`. It returns the
index of each example's client, int64 [examples]; −1 leaves an example out.
"""


def aggregation(name: str, rule: RuleFunction, version: str = "") -> None:
    """Register a rule for the setting ``aggregation.rule``.

    Args:
        name: lower-case letters, digits and hyphens.
        rule: function that maps a round's contributions, ascending by client, to the weights of the
            clients' updates, float64 [clients]. Contributions are unchecked numbers from clients. A
            rule that must withstand hostile clients therefore has to bound them.
        version: text that identifies this version of the object in place of a hash of its source.

    Raises:
        ConfigError: if the name is invalid, or if the source is unavailable and `version` is empty.
    """
    register("aggregation", name, rule, version)


def estimator(name: str, function: EstimatorFunction, version: str = "") -> None:
    """Register an estimator of projected gradients for the setting ``gradients``.

    Args:
        name: lower-case letters, digits and hyphens.
        function: generator function whose arguments are seeds (uint64 [queries]), the batch's
            example indices (int64 [batch]) and ε. It yields each `LossRequest`, receives the
            losses, and returns a `GradientEstimate`. If the step size is estimated, Samara measures
            the curvature with additional requests.
        version: text that identifies this version of the object in place of a hash of its source.

    Raises:
        ConfigError: if the name is invalid, or if the source is unavailable and `version` is empty.
    """
    register("estimator", name, function, version)


def objective(name: str, function: Objective, version: str = "") -> None:
    """Register a loss for the setting ``objective``.

    Args:
        name: lower-case letters, digits and hyphens.
        function: function of scores, float32 [perturbations, rows, labels], and labels, int64
            [rows], that returns the loss of each perturbation, float64 [perturbations]. It needs no
            derivative. The scores of a row contain an arbitrary additive constant; use a softmax to
            obtain probabilities.
        version: text that identifies this version of the object in place of a hash of its source.

    Raises:
        ConfigError: if the name is invalid, or if the source is unavailable and `version` is empty.
    """
    register("objective", name, function, version)


def partition(name: str, function: PartitionFunction, version: str = "") -> None:
    """Register a function that divides examples among clients, for ``data.partition``.

    Args:
        name: lower-case letters, digits and hyphens.
        function: function of all examples, the number of clients, `data.alpha` and `data.seed`. It
            returns the index of each example's client, int64 [examples]; −1 leaves an example out.
        version: text that identifies this version of the object in place of a hash of its source.

    Raises:
        ConfigError: if the name is invalid, or if the source is unavailable and `version` is empty.
    """
    register("partition", name, function, version)


def personalization(name: str, method: Personalization, version: str = "") -> None:
    """Register a personalization for the setting ``method``.

    All rounds train the federation's model. Then every client calls the method once, and keeps the
    returned numbers as its private part. `adapter.label-bias` must be true.

    Args:
        name: lower-case letters, digits and hyphens.
        method: function that maps a client's training examples, with the scores of the federation's
            model, to the private numbers to add to that model.
        version: text that identifies this version of the object in place of a hash of its source.

    Raises:
        ConfigError: if the name is invalid, or if the source is unavailable and `version` is empty.
    """
    register("personalization", name, method, version)


def task(name: str, task: Task) -> None:
    """Register a task for the setting ``task``.

    A task file does the same without Python code.

    Args:
        name: lower-case letters, digits and hyphens; not the name of a shipped task.
        task: the task: a classification, a choice or a generation.

    Raises:
        ConfigError: if the name is invalid.
    """
    register("task", name, task)
