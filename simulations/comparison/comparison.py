"""The comparison as a whole: summaries, tested differences, costs, and the answer in words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from shared.config import RunConfig
from simulations.comparison.columns import GLOBAL
from simulations.comparison.statistics import (
    CONFIDENCE,
    Difference,
    Numbers,
    Summary,
    compared,
    holm,
    smallest_p,
    summarized,
)
from simulations.comparison.variants import Arm, Field, Run, Variant, field_of

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Line:
    """An arm with what is said of it: how its accuracy is spread, and its mean macro-F1."""

    arm: Arm
    accuracy: Summary
    macro_f1: float


@dataclass(frozen=True)
class Tested:
    """A tested difference between two arms.

    Attributes:
        arm, against: what is compared with what.
        accuracy: of the clients; its p is as the test gave it.
        p: the same, corrected by Holm over all tested differences.
        macro_f1: mean difference; not tested.
    """

    arm: Arm
    against: Arm
    accuracy: Difference
    p: float
    macro_f1: float

    @property
    def real(self) -> bool:
        """Whether chance is an unlikely explanation, after correction."""
        return self.p < 1 - CONFIDENCE


@dataclass(frozen=True)
class Cost:
    """What one client spends on a run, as means over repetitions.

    Attributes:
        bytes_up, bytes_down: per client, evaluations included.
        steps: of training in the federation, for a client that is in every cohort.
        private_steps: on top of it.
        passes: sequences' forward passes in all these steps, 2·q·B each.
        seconds: of the whole run on the machine that emulated all clients.
        adapter_bytes: what one upload of the adapter's numbers would be.
    """

    bytes_up: float
    bytes_down: float
    steps: int
    private_steps: int
    passes: int
    seconds: float
    adapter_bytes: int


@dataclass(frozen=True)
class Moment:
    """The global model at a validation.

    Attributes:
        round: after which.
        bytes: up and down per client until then, in training.
        accuracy: of every client on its validation examples, float64 [clients].
    """

    round: int
    bytes: float
    accuracy: Numbers


@dataclass(frozen=True)
class Comparison:
    """What is known about the runs of a field."""

    field: Field

    @cached_property
    def lines(self) -> list[Line]:
        """Every arm that is shown, of the clients that trained."""
        return [_line(arm) for arm in self.field.shown()]

    @cached_property
    def new_lines(self) -> list[Line]:
        """The same of newcomers; empty without any."""
        return [_line(arm) for arm in self.field.shown(new=True)]

    @cached_property
    def tested(self) -> list[Tested]:
        """Differences, with p-values corrected over all of them."""
        rows = []
        for arm, against in self.field.pairs():
            accuracy = compared(arm.accuracy, against.accuracy)
            f1 = float((arm.macro_f1 - against.macro_f1).mean())
            rows.append(Tested(arm, against, accuracy, accuracy.p, f1))
        corrected = holm([row.p for row in rows])
        return [replace(row, p=p) for row, p in zip(rows, corrected, strict=True)]

    @cached_property
    def main(self) -> Tested:
        """The difference that the answer is about."""
        pair = self.field.main_pair()
        return next(row for row in self.tested if (row.arm, row.against) == pair)

    @property
    def too_few(self) -> bool:
        """Whether no gain, however clear, could pass the correction with so few clients."""
        return smallest_p(len(self.field.clients)) * len(self.tested) >= 1 - CONFIDENCE

    def grouped(self) -> dict[str, dict[str, Tested]]:
        """The tested differences under a title each, by what a row is held against."""
        several = len(self.field.variants) > 1
        groups: dict[str, dict[str, Tested]] = {}
        for row in self.tested:
            if self.field.methods:
                title, name = f"{self.named(row.arm)} against", self.named(row.against)
            elif several:
                title, name = f"{row.arm.variant} against {row.against.variant}", row.arm.name
            else:
                title, name = f"{row.arm.name} against", row.against.name
            groups.setdefault(title, {})[name] = row
        return groups

    def named(self, arm: Arm) -> str:
        """An arm in words: of different methods by these, of several variants with a letter."""
        variants = {variant.label: variant for variant in self.field.variants}
        if self.field.methods:
            own = variants[arm.variant]
            if arm.name != own.served:
                return arm.name
            alike = sum(variant.method == own.method for variant in variants.values()) > 1
            return f"{own.method} {arm.variant}" if alike else own.method
        return f"{arm.name} {arm.variant}" if len(self.field.variants) > 1 else arm.name

    def answer(self) -> str:
        """The result in one sentence."""
        return f"{self.headline()}: {self.evidence()}"

    def headline(self) -> str:
        """What was found, in words."""
        main = self.main
        one, other = self.named(main.arm), self.named(main.against)
        if not main.real:
            return f"No difference between {one} and {other} is shown"
        return (
            f"{one} serves clients {'better' if main.accuracy.mean > 0 else 'worse'} than {other}"
        )

    def evidence(self) -> str:
        """What the headline rests on."""
        main, clients = self.main, len(self.field.clients)
        own = main.accuracy
        gained = f"{points(own.mean)} points of accuracy"
        if clients < 2:
            return f"{gained} for one client, which says nothing of others."
        few = "so few clients could not show one; " if self.too_few else ""
        return (
            f"{few}{gained} (95 % interval {points(own.low)} to {points(own.high)}), "
            f"{own.gaining} of {clients} clients gain, {own.losing} lose, "
            f"corrected p {p_text(main.p)}."
        )

    def cost(self, variant: Variant) -> Cost:
        """What a client spends; see `Cost`."""
        results = [run.result for run in variant.runs]
        settings = RunConfig.of(variant.first.config, str(variant.runs[0].folder))
        steps, rounds = settings.steps, settings.federated_rounds
        private = steps * settings.private_rounds
        queries = settings.queries
        points = queries + 1 if settings.differences == "forward" else 2 * queries
        rows = points * settings.batch
        return Cost(
            float(np.mean([result.bytes_up / len(result.clients) for result in results])),
            float(np.mean([result.bytes_down / len(result.clients) for result in results])),
            steps * rounds,
            private,
            (steps * rounds + private) * rows,
            float(np.mean([result.wall_seconds for result in results])),
            variant.first.elements * FLOAT32_BYTES,
        )

    def curve(self, variant: Variant) -> list[Moment]:
        """The global model's validations that every repetition has."""
        histories = [_history(run, self.field.clients) for run in variant.runs]
        shared = set.intersection(*(set(history) for history in histories))
        return [
            Moment(
                number,
                float(np.mean([history[number].bytes for history in histories])),
                np.mean([history[number].accuracy for history in histories], axis=0),
            )
            for number in sorted(shared)
        ]

    def labels(self) -> dict[str, str]:
        """What every variant is: its runs, its seeds, and the settings of its own."""
        described = {}
        for variant in self.field.variants:
            seeds = ", ".join(str(run.result.config.get("seed")) for run in variant.runs)
            own = [f"{key} = {value}" for key, value in self.field.own(variant).items()]
            parts = [", ".join(str(run.folder) for run in variant.runs), f"seed {seeds}", *own]
            described[variant.label] = "; ".join(parts)
        return described


def comparison_of(folders: Sequence[Path]) -> Comparison:
    """Compare finished runs.

    Raises:
        SamaraError: if they cannot be compared; see `field_of`.
    """
    return Comparison(field_of(folders))


def percent(share: float) -> str:
    """A share in percent, without the sign; halves are decimal ones, as one rounds by hand."""
    return f"{round(share * 100, 6):.1f}"


def points(difference: float) -> str:
    """A difference of shares in percentage points."""
    return f"{round(difference * 100, 1) + 0.0:+.1f}".replace("-", "−")


def p_text(p: float) -> str:
    """A p-value as it is printed."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _line(arm: Arm) -> Line:
    return Line(arm, summarized(arm.accuracy), float(arm.macro_f1.mean()))


def _history(run: Run, clients: Sequence[int]) -> dict[int, Moment]:
    """Validations by round, of the clients that were there at all of them."""
    result = run.result
    spent = {entry.round: entry.bytes_up + entry.bytes_down for entry in result.rounds}
    moments = {}
    for evaluation in result.evaluations:
        column = evaluation.columns.get(GLOBAL)
        if evaluation.split != "validation" or column is None:
            continue
        number = evaluation.round
        if all(client in column.clients for client in clients):
            until = sum(size for spent_in, size in spent.items() if spent_in <= number)
            accuracy = np.array([column.clients[client].accuracy for client in clients])
            moments[number] = Moment(number, until / len(result.clients), accuracy)
    return moments
