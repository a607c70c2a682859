"""A comparison of finished runs: summaries, tested differences, costs, and the answer in words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from samara.shared.columns import GLOBAL
from samara.shared.config import RunConfig
from samara.shared.result import RunResult
from samara.shared.traffic import Traffic, mean_traffic, traffic_of
from samara.simulations.comparison.columns import with_bytes
from samara.simulations.comparison.measure import Measure, figures_of, measure_of
from samara.simulations.comparison.seeds import describe_seeds
from samara.simulations.comparison.statistics import (
    CONFIDENCE,
    Difference,
    Numbers,
    Summary,
    correct_by_holm,
    paired_difference,
    smallest_p,
    summarize,
)
from samara.simulations.comparison.variants import (
    ComparisonSet,
    Condition,
    Run,
    Variant,
    read_comparison_set,
)
from samara.simulations.comparison.verdict import Verdict

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ConditionSummary:
    """A condition with the summary of its quality and the mean of its second figure."""

    condition: Condition
    quality: Summary
    second: float


@dataclass(frozen=True)
class TestedDifference:
    """A tested difference between two conditions.

    Attributes:
        condition: the condition that is tested.
        against: the condition that it is tested against.
        quality: paired differences in quality; its p-value is uncorrected.
        p: p-value, corrected by Holm over all tested differences.
        second: mean difference in the second figure; not tested.
    """

    condition: Condition
    against: Condition
    quality: Difference
    p: float
    second: float

    @property
    def is_significant(self) -> bool:
        """Return whether the corrected p-value is below 0.05."""
        return self.p < 1 - CONFIDENCE


@dataclass(frozen=True)
class Cost:
    """The cost of a run for one client, as means over repetitions.

    Attributes:
        bytes_up, bytes_down: bytes sent and received by a client, evaluations included.
        steps: local steps in the federation of a client that is in every cohort.
        private_steps: steps of the private rounds.
        passes: passes of one sequence through the model in all these steps, as the run has counted
            them or, where it has not, as its settings and examples tell; None if these do not.
        seconds: duration of the whole run on the machine that simulated all clients.
        adapter_bytes: size of one upload of the adapter in float32, for comparison.
        traffic: bytes of all clients beside those of FedAvg.
    """

    bytes_up: float
    bytes_down: float
    steps: int
    private_steps: int
    passes: int | None
    seconds: float
    adapter_bytes: int
    traffic: Traffic


@dataclass(frozen=True)
class ValidationPoint:
    """One validation of the global model.

    Attributes:
        round: the round after which it took place.
        bytes: bytes of training, both ways, per client until then.
        quality: accuracy of every client on its validation examples, or minus its loss in bits per
            byte, float64 [clients].
    """

    round: int
    bytes: float
    quality: Numbers


@dataclass(frozen=True)
class Comparison:
    """The comparison of a set of runs."""

    runs: ComparisonSet

    @cached_property
    def measure(self) -> Measure:
        """The measure that the runs are compared by."""
        columns = self.runs.variants[0].runs[0].columns.values()
        return measure_of(own for figures in columns for own in figures.values())

    @cached_property
    def summaries(self) -> list[ConditionSummary]:
        """The summary of every displayed condition, over the clients that trained."""
        return [_summary(condition) for condition in self.runs.displayed()]

    @cached_property
    def newcomer_summaries(self) -> list[ConditionSummary]:
        """The summary of every displayed condition, over the newcomers; empty if there are none."""
        return [_summary(condition) for condition in self.runs.displayed(newcomers=True)]

    @cached_property
    def tested(self) -> list[TestedDifference]:
        """The tested differences, with p-values corrected over all of them."""
        rows = []
        for condition, against in self.runs.pairs():
            quality = paired_difference(condition.quality, against.quality)
            second = float((condition.second - against.second).mean())
            rows.append(TestedDifference(condition, against, quality, quality.p, second))
        corrected = correct_by_holm([row.p for row in rows])
        return [replace(row, p=p) for row, p in zip(rows, corrected, strict=True)]

    @cached_property
    def main(self) -> TestedDifference:
        """The difference that the headline reports."""
        pair = self.runs.main_pair()
        return next(row for row in self.tested if (row.condition, row.against) == pair)

    @property
    def too_few(self) -> bool:
        """Return whether even a gain of every client would not be significant."""
        return smallest_p(len(self.runs.clients)) * len(self.tested) >= 1 - CONFIDENCE

    def client_name(self, client: int) -> str:
        """Return the name of a client; where runs name it differently, its number."""
        results = [run.result for variant in self.runs.variants for run in variant.runs]
        names = {result.name_of(client) for result in results}
        return names.pop() if len(names) == 1 else str(client)

    def by_title(self) -> dict[str, dict[str, TestedDifference]]:
        """Return the tested differences by the title of their table and the name of their row."""
        several = len(self.runs.variants) > 1
        groups: dict[str, dict[str, TestedDifference]] = {}
        for row in self.tested:
            if self.runs.compares_methods:
                title, name = f"{self.name_of(row.condition)} against", self.name_of(row.against)
            elif several:
                title, name = (
                    f"{row.condition.variant} against {row.against.variant}",
                    row.condition.name,
                )
            else:
                title, name = f"{row.condition.name} against", row.against.name
            groups.setdefault(title, {})[name] = row
        return groups

    def name_of(self, condition: Condition) -> str:
        """Return a condition's name: its method, or its column and its variant's label."""
        variants = {variant.label: variant for variant in self.runs.variants}
        if self.runs.compares_methods:
            own = variants[condition.variant]
            if condition.name != own.final_column:
                return condition.name
            alike = sum(variant.method == own.method for variant in variants.values()) > 1
            return f"{own.method} {condition.variant}" if alike else own.method
        return (
            f"{condition.name} {condition.variant}"
            if len(self.runs.variants) > 1
            else condition.name
        )

    def answer(self) -> str:
        """Return the result in one sentence."""
        return f"{self.headline()}: {self.evidence()}"

    def headline(self) -> str:
        """Return the finding in words."""
        main = self.main
        one, other = self.name_of(main.condition), self.name_of(main.against)
        if not main.is_significant:
            place = self.measure.place(main.quality.mean)
            if place == "level with":
                return f"{one} is level with {other}"
            return f"{one} is {place} {other}, which is not shown to be more than chance"
        return f"{one} serves clients {'better' if main.quality.mean > 0 else 'worse'} than {other}"

    def warnings(self) -> list[str]:
        """Return by which other column a variant's own model is beaten, and what to try.

        And that validation shows no gain of a run's global model; of repetitions the first is told.
        """
        lines = []
        for variant in self.runs.variants:
            which = f"{variant.label}: " if len(self.runs.variants) > 1 else ""
            qualities = {name: own.quality for name, own in variant.conditions.items()}
            verdict = Verdict.of(qualities, self.measure)
            if verdict is not None and verdict.loses:
                advice = verdict.what_to_try(variant.first.config)
                lines.append(f"{which}{verdict.sentence()}. {advice}")
            if without := [run.result for run in variant.runs if run.result.no_gain]:
                seed = f"seed {without[0].config['seed']}: " if len(variant.runs) > 1 else ""
                lines.append(f"{which}{seed}{without[0].no_gain}")
        return lines

    def splits(self) -> list[str]:
        """Return what the splits of the data were drawn by, and of which texts clients share."""
        results = [run.result for variant in self.runs.variants for run in variant.runs]
        lines = [
            describe_seeds([result.config for result in results])
            if len(results) > 1
            else results[0].describe_split()
        ]
        shared = dict.fromkeys(result.describe_shared_texts() for result in results)
        return [*lines, *[line for line in shared if line]]

    def evidence(self) -> str:
        """Return the figures behind the headline."""
        main, clients = self.main, len(self.runs.clients)
        own = main.quality
        measure = self.measure
        gained = f"{measure.gain(own.mean)} {measure.gained}"
        if clients < 2:
            return f"{gained} for one client, which says nothing about others."
        few = "so few clients cannot show a difference; " if self.too_few else ""
        disagree = not main.is_significant and own.low * own.high > 0
        alone = f" for all {len(self.tested)}; the interval is of this comparison alone"
        return (
            f"{few}{gained} (95 % interval {measure.gain(own.low)} to {measure.gain(own.high)}), "
            f"{own.gaining} of {clients} clients gain, {own.losing} lose, "
            f"corrected p {format_p(main.p)}{alone if disagree else ''}."
        )

    def cost(self, variant: Variant) -> Cost:
        """Return the cost of a variant for one client."""
        results = [run.result for run in variant.runs]
        settings = RunConfig.of(variant.first.config, str(variant.runs[0].folder))
        steps, rounds = settings.steps, settings.federated_rounds
        private = steps * settings.private_rounds
        passes = [result.mean_passes for result in results if result.mean_passes is not None]
        return Cost(
            float(np.mean([result.bytes_up / len(result.clients) for result in results])),
            float(np.mean([result.bytes_down / len(result.clients) for result in results])),
            steps * rounds,
            private,
            round(np.mean(passes)) if passes else _expected_passes(settings, variant.first),
            float(np.mean([result.wall_seconds for result in results])),
            variant.first.elements * FLOAT32_BYTES,
            mean_traffic([traffic_of(result) for result in results]),
        )

    def curve(self, variant: Variant) -> list[ValidationPoint]:
        """Return the validations of the global model that all repetitions have in common."""
        histories = [_history(run, self.runs.clients) for run in variant.runs]
        shared = set.intersection(*(set(history) for history in histories))
        return [
            ValidationPoint(
                number,
                float(np.mean([history[number].bytes for history in histories])),
                np.mean([history[number].quality for history in histories], axis=0),
            )
            for number in sorted(shared)
        ]

    def labels(self) -> dict[str, str]:
        """Return by label the runs, the seeds and the differing settings of every variant."""
        described = {}
        for variant in self.runs.variants:
            seeds = ", ".join(str(run.result.config.get("seed")) for run in variant.runs)
            own = [
                f"{key} = {value}" for key, value in self.runs.differing_settings(variant).items()
            ]
            parts = [", ".join(str(run.folder) for run in variant.runs), f"seed {seeds}", *own]
            described[variant.label] = "; ".join(parts)
        return described


def compare_runs(folders: Sequence[Path]) -> Comparison:
    """Compare finished runs.

    Raises:
        SamaraError: if they cannot be compared; see `read_comparison_set`.
    """
    return Comparison(read_comparison_set(folders))


def format_p(p: float) -> str:
    """Return a p-value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _expected_passes(settings: RunConfig, result: RunResult) -> int | None:
    """Return the passes of a client that has not counted them; None if its examples are unknown.

    A readout's examples pass once. Otherwise a step takes 2·q·B forward passes, or a forward and a
    backward pass of B with exact gradients.
    """
    examples = round(np.mean([client.examples for client in result.clients.values()]))
    if not settings.adapter.inner_layers:
        return examples or None
    queries = settings.queries
    points = queries + 1 if settings.differences == "forward" else 2 * queries
    rows = (2 if settings.gradients == "exact" else points) * settings.batch
    return settings.steps * (settings.federated_rounds + settings.private_rounds) * rows


def _summary(condition: Condition) -> ConditionSummary:
    return ConditionSummary(condition, summarize(condition.quality), float(condition.second.mean()))


def _history(run: Run, clients: Sequence[int]) -> dict[int, ValidationPoint]:
    """Return a run's validations by round, where all of these clients took part."""
    result = run.result
    spent = Counter({entry.round: entry.bytes_up + entry.bytes_down for entry in result.rounds})
    for event in result.evaluations:  # which may bring clients what the next instruction would
        spent[event.round] += event.catch_up_bytes
    validations = {}
    for evaluation in result.evaluations:
        column = evaluation.columns.get(GLOBAL)
        if evaluation.split != "validation" or column is None:
            continue
        number = evaluation.round
        if all(client in column.clients for client in clients):
            until = sum(size for spent_in, size in spent.items() if spent_in <= number)
            own = with_bytes(column.clients, result, evaluation.split)
            if all(client in own for client in clients):
                quality = np.array([figures_of(own[client]).quality for client in clients])
                validations[number] = ValidationPoint(number, until / len(result.clients), quality)
    return validations
