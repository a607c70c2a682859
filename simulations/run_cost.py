"""The processor time that a run will take, part by part, before its first round. Pure.

It follows from counts, such as rows and steps, and from the measured time of some rows in the
model on this machine. The constants are seconds of one core that the rest costs;
`benchmarks/speed/run_cost.py` measures them, and how near the sums are to runs.
"""

from dataclasses import dataclass
from typing import NamedTuple

LOADING = 5.8
"""Loading the libraries."""
MODEL_NUMBER = 3e-9
"""Reading a number of the model, and hashing it."""
EXAMPLE = 8e-5
"""Reading an example, and dealing it to a client."""
TOKEN = 4e-6
"""Tokenizing a token."""
MESSAGE = 4e-3
"""A message to a client with its answer, and the server's part of it."""
STEP = 6e-4
"""A local step, whatever its size."""
SCORE = 1e-8
"""A score of a readout under a perturbation, with its part of the loss."""
PRODUCT = 2e-11
"""A product of a feature and a number of a readout under a perturbation."""
FEATURE = 1e-9
"""Gathering a feature of an example."""
NUMBER = 1e-8
"""Drawing and replaying a number of a direction."""
FIT = 0.1
"""The fit of a private part, of some tens of examples and some hundred features."""
REPORT = 0.7
"""Tables and curves after the last round."""


@dataclass(frozen=True)
class RunSize:
    """The counts that the time of a run follows from.

    Attributes:
        clients: number of clients.
        reports: messages of rounds, in the whole run.
        private_rounds: private rounds of all clients.
        fits: private parts that are fitted by a solver, of all clients.
        steps: local steps of a round.
        perturbations: perturbed models of a step.
        directions: directions of a step.
        batch: examples of a step, in the mean.
        labels: scores of a row.
        features: features that a readout alone reads; 0 with adapters inside the model.
        numbers: trained numbers.
        examples: examples of all clients and splits.
        tokens: tokens of an example, in the mean.
        training, validation, test: examples of all clients that are used.
        validations: evaluations of the global model on validation examples.
        tests: those on test examples.
        personal_columns: models that are compared on each example in the end, by split.
        model_numbers: numbers of the model.
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


class RowCost(NamedTuple):
    """Seconds of one core that a row takes in the model, in the mean.

    Attributes:
        once: part of the model that runs once for every example of a run.
        step: part that runs once for every example of a step, or of an evaluation.
        again: part that runs for every perturbation of it; none for a readout alone.
    """

    once: float
    step: float = 0.0
    again: float = 0.0


class RunCost(NamedTuple):
    """Seconds of one core by part.

    Attributes:
        loading: libraries, model and data.
        validation_pass, test_pass, training_pass: tokenization, and the model's part that runs once
            for an example.
        first_evaluations: evaluations before round 1, besides.
        evaluations: later ones of the global model.
        rounds: rounds of the federation, besides.
        personal: private rounds and fits, and the comparison of personal models.
        report: result and tables.
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

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return sum(self)

    @property
    def before_round_1(self) -> float:
        """Seconds of the first evaluations."""
        return self.validation_pass + self.test_pass + self.first_evaluations

    @property
    def passes(self) -> float:
        """Seconds of what runs once for every example."""
        return self.validation_pass + self.test_pass + self.training_pass


def run_cost(size: RunSize, row: RowCost) -> RunCost:
    """Return the cost of a run.

    Args:
        size: counts of the run.
        row: cost of a row in its model.
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
        validation_pass=size.validation * once,
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
    """Return the seconds of evaluations of the global model, of which each row takes `kept`."""
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
    """Return the seconds of an example's scores from what is kept of its pass."""
    return size.labels * (SCORE + PRODUCT * size.features) + FEATURE * size.features
