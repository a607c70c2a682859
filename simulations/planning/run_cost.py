"""The expected processor time of a run by part, computed before the first round.

The time follows from counts, such as rows and steps, and from timed rows of the model on this
machine. The constants are the seconds of one core for all other work.
`benchmarks/speed/run_cost.py` at 6838aaf3 measures the constants and the error of the estimates.
"""

from dataclasses import dataclass
from typing import NamedTuple

LOADING = 5.8
"""Seconds for loading the libraries."""
MODEL_NUMBER = 3e-9
"""Seconds for reading and hashing one number of the model."""
EXAMPLE = 8e-5
"""Seconds for reading an example and assigning it to a client."""
TOKEN = 4e-6
"""Seconds for producing one token by tokenization."""
MESSAGE = 4e-3
"""Seconds for a message to a client and the client's answer, including the server's work."""
STEP = 6e-4
"""Fixed cost of a local step in seconds, whatever its size."""
SCORE = 1e-8
"""Seconds for one readout score under one perturbation, including its share of the loss."""
PRODUCT = 2e-11
"""Seconds for one product of a feature and a readout weight under a perturbation."""
FEATURE = 1e-9
"""Seconds for gathering one feature of an example."""
NUMBER = 1e-8
"""Seconds for drawing and replaying one number of a direction."""
FIT = 0.1
"""Seconds for a private fit with tens of examples and hundreds of features."""
REPORT = 0.7
"""Seconds for tables and curves after the last round."""


@dataclass(frozen=True)
class RunSize:
    """The counts from which the duration of a run is estimated.

    Attributes:
        clients: number of clients.
        reports: number of round messages in the whole run.
        private_rounds: number of private rounds of all clients.
        fits: number of private fits of all clients.
        steps: number of local steps of a round.
        perturbations: number of perturbed models of a step.
        directions: number of directions of a step.
        batch: mean number of examples of a step.
        labels: number of scores of a row.
        features: number of features if only a readout is trained; 0 with adapters inside the model.
        numbers: number d of trained numbers.
        examples: number of examples of all clients and splits.
        tokens: mean number of tokens of an example.
        training: number of training examples that the run uses, over all clients.
        validation: number of validation examples that the run uses, over all clients.
        test: number of test examples that the run uses, over all clients.
        validations: number of evaluations of the global model on validation examples.
        tests: number of evaluations of the global model on test examples.
        personal_columns: number of models that are compared at the end on validation examples, and
            number of models that are compared on test examples.
        model_numbers: number of the model's weights.
        damping_rows: length of the texts on which the damping is measured, in units of the mean
            number of tokens of an example.
    """

    clients: int
    reports: int
    private_rounds: int
    fits: int
    steps: int
    perturbations: int
    directions: int
    batch: float
    labels: int
    features: int
    numbers: int
    examples: int
    tokens: float
    training: int
    validation: int
    test: int
    validations: int
    tests: int
    personal_columns: tuple[int, int]
    model_numbers: int
    damping_rows: float = 0.0


class RowCost(NamedTuple):
    """Mean seconds of one core for a row in the model.

    Attributes:
        once: seconds of the part of the model that runs once for every example of a run.
        step: seconds of the part that runs once for every example of a step or an evaluation.
        again: seconds of the part that runs for every perturbation of an example; 0 if only a
            readout is trained.
    """

    once: float
    step: float = 0.0
    again: float = 0.0


class RunCost(NamedTuple):
    """Seconds of one core by part of a run.

    Attributes:
        loading: libraries, model and data.
        validation_pass: tokenization and first model pass of validation examples, and of the texts
            on which a damping is measured.
        test_pass: tokenization and first model pass of test examples.
        training_pass: tokenization and first model pass of training examples.
        first_evaluations: other work of the evaluations before round 1.
        evaluations: later evaluations of the global model.
        rounds: other work of the federation's rounds.
        personal: private rounds and fits, and the comparison of personal models.
        report: result and tables.
        form: choice of the prompts' form before the plan.
    """

    loading: float
    validation_pass: float
    test_pass: float
    training_pass: float
    first_evaluations: float
    evaluations: float
    rounds: float
    personal: float
    report: float
    form: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of the whole run."""
        return sum(self)

    @property
    def before_round_1(self) -> float:
        """The seconds of the first evaluations."""
        return self.validation_pass + self.test_pass + self.first_evaluations

    @property
    def passes(self) -> float:
        """The seconds of work that is done once per example."""
        return self.validation_pass + self.test_pass + self.training_pass


def run_cost(size: RunSize, row: RowCost) -> RunCost:
    """Return the cost of a run.

    Args:
        size: counts of the run.
        row: cost of a row in the run's model.
    """
    step = size.steps * _step_cost(size, row)
    compared = sum(
        columns * rows
        for columns, rows in zip(size.personal_columns, (size.validation, size.test), strict=True)
    )
    kept = _kept_row_cost(size) + row.step + row.again
    once = row.once + size.tokens * TOKEN
    first = _evaluation_cost(size, kept, 1, min(1, size.tests))
    return RunCost(
        loading=LOADING + MODEL_NUMBER * size.model_numbers + size.examples * EXAMPLE,
        validation_pass=size.validation * once + size.damping_rows * row.once,
        test_pass=size.test * once,
        training_pass=size.training * once,
        first_evaluations=first,
        evaluations=_evaluation_cost(size, kept, size.validations, size.tests) - first,
        rounds=size.reports * (MESSAGE + step),
        personal=size.private_rounds * (MESSAGE + step)
        + size.fits * FIT
        + compared * kept
        + 2 * size.clients * MESSAGE * any(size.personal_columns),
        report=REPORT,
    )


def _evaluation_cost(size: RunSize, kept: float, validations: int, tests: int) -> float:
    """Return the seconds of evaluations of the global model; a row takes `kept` seconds."""
    rows = validations * size.validation + tests * size.test
    return (validations + tests) * size.clients * MESSAGE + rows * kept


def _step_cost(size: RunSize, row: RowCost) -> float:
    """Return the seconds of a local step."""
    rows = size.batch * size.perturbations
    drawn = STEP + NUMBER * size.directions * size.numbers
    if not size.features:
        return drawn + size.batch * row.step + rows * row.again
    scores = rows * size.labels * (SCORE + PRODUCT * size.features)
    return drawn + scores + FEATURE * size.batch * size.features


def _kept_row_cost(size: RunSize) -> float:
    """Return the seconds to score an example from the cached output of its first pass."""
    return size.labels * (SCORE + PRODUCT * size.features) + FEATURE * size.features
