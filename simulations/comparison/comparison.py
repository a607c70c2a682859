"""A comparison of finished runs: summaries, tested differences, costs, and an answer as text."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from samara.shared.results.result import RunResult
from samara.shared.results.traffic import Traffic, mean_traffic, traffic_of
from samara.shared.settings.config import RunConfig
from samara.shared.terms.columns import GLOBAL
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
    """The summary of a condition.

    Attributes:
        condition: the condition.
        quality: summary of the clients' quality; see `measure.Figures`.
        second: mean of the secondary metric over the clients.
        auc: mean AUC over the clients; None if unknown.
    """

    condition: Condition
    quality: Summary
    second: float
    auc: float | None


@dataclass(frozen=True)
class TestedDifference:
    """A tested difference between two conditions.

    Attributes:
        condition: the condition under test.
        against: the condition with which `condition` is compared.
        quality: paired differences in quality; their p-value is uncorrected.
        p: p-value with Holm's correction over all tested differences.
        second: mean difference in the secondary metric; not tested.
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
        bytes_up: bytes that a client sends, including evaluations.
        bytes_down: bytes that a client receives, including evaluations.
        steps: local steps in the federation, for a client that is in every cohort.
        private_steps: steps of the private rounds.
        passes: forward passes of one sequence in all these steps, counted by the run or derived
            from its settings and examples; None if neither is possible.
        seconds: duration of the whole run on the machine that simulated all clients, in seconds.
        adapter_bytes: size of one upload of the adapter in float32, for comparison.
        traffic: bytes of all clients in this run and with FedAvg.
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
        round: the round before the validation.
        bytes: training bytes per client up to this round, in both directions.
        quality: quality of each client on its validation examples, float64 [clients]: accuracy, or
            minus the bits per byte.
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
        """The measure by which the runs are compared."""
        columns = self.runs.variants[0].runs[0].columns.values()
        return measure_of(own for figures in columns for own in figures.values())

    @cached_property
    def summaries(self) -> list[ConditionSummary]:
        """The summary of every displayed condition, over the clients that trained."""
        return [_summary(condition) for condition in self.runs.displayed()]

    @cached_property
    def newcomer_summaries(self) -> list[ConditionSummary]:
        """The summary of every displayed condition over the newcomers; empty without newcomers."""
        return [_summary(condition) for condition in self.runs.displayed(newcomers=True)]

    @property
    def has_auc(self) -> bool:
        """Return whether the mean AUC of at least one displayed condition is known."""
        return any(summary.auc is not None for summary in self.summaries)

    @cached_property
    def tested(self) -> list[TestedDifference]:
        """The tested differences, with p-values corrected over all tested differences."""
        rows = []
        for condition, against in self.runs.pairs():
            quality = paired_difference(condition.quality, against.quality)
            second = float((condition.second - against.second).mean())
            rows.append(TestedDifference(condition, against, quality, quality.p, second))
        corrected = correct_by_holm([row.p for row in rows])
        return [replace(row, p=p) for row, p in zip(rows, corrected, strict=True)]

    @cached_property
    def main(self) -> TestedDifference:
        """The difference reported in the headline."""
        pair = self.runs.main_pair()
        return next(row for row in self.tested if (row.condition, row.against) == pair)

    @property
    def too_few(self) -> bool:
        """Return whether the clients are too few for a significant difference, even if all gain."""
        return smallest_p(len(self.runs.clients)) * len(self.tested) >= 1 - CONFIDENCE

    def client_name(self, client: int) -> str:
        """Return the name of a client, or its number if runs have different names for it."""
        results = [run.result for variant in self.runs.variants for run in variant.runs]
        names = {result.name_of(client) for result in results}
        return names.pop() if len(names) == 1 else str(client)

    def by_title(self) -> dict[str, dict[str, TestedDifference]]:
        """Return the tested differences by title of their table and name of their row."""
        several = len(self.runs.variants) > 1
        groups: dict[str, dict[str, TestedDifference]] = {}
        for row in self.tested:
            if self.runs.compares_methods:
                title = f"{self.name_of(row.condition)} against"
                name = self.name_of(row.against)
            elif several:
                title = f"{row.condition.variant} against {row.against.variant}"
                name = row.condition.name
            else:
                title = f"{row.condition.name} against"
                name = row.against.name
            groups.setdefault(title, {})[name] = row
        return groups

    def name_of(self, condition: Condition) -> str:
        """Return the displayed name of a condition.

        Without a comparison of methods, the name is the column, followed by the variant's label if
        there are several variants. In a comparison of methods, the name of a final model is its
        method, followed by the variant's label if several variants use this method. Other
        conditions then have the name of their column.
        """
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
        """Return the main finding as a sentence."""
        main = self.main
        one = self.name_of(main.condition)
        other = self.name_of(main.against)
        if not main.is_significant:
            place = self.measure.place(main.quality.mean)
            if place == "level with":
                return f"{one} is level with {other}"
            return f"{one} is {place} {other}, which may be due to chance"
        return f"{one} serves clients {'better' if main.quality.mean > 0 else 'worse'} than {other}"

    def warnings(self) -> list[str]:
        """Return warnings about variants, with remedies.

        A warning reports a variant's model that loses to another column, or a run whose global
        model shows no gain on validation. If several repetitions of a variant show no gain, only
        the first is named.
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
        """Return lines about the seeds of the data splits, and about texts that clients share."""
        results = [run.result for variant in self.runs.variants for run in variant.runs]
        lines = [
            describe_seeds([result.config for result in results])
            if len(results) > 1
            else results[0].describe_split()
        ]
        shared = dict.fromkeys(result.describe_shared_texts() for result in results)
        return [*lines, *[line for line in shared if line]]

    def evidence(self) -> str:
        """Return the numbers that support the headline, as text."""
        main = self.main
        clients = len(self.runs.clients)
        own = main.quality
        measure = self.measure
        gained = f"{measure.gain(own.mean)} {measure.gained}"
        if clients < 2:
            return f"{gained} for one client, which says nothing about other clients."
        few = "there are too few clients to show a difference; " if self.too_few else ""
        disagree = not main.is_significant and own.low * own.high > 0
        alone = f" over all {len(self.tested)} comparisons; the interval is not corrected"
        return (
            f"{few}{gained} (95 % interval {measure.gain(own.low)} to {measure.gain(own.high)}), "
            f"{own.gaining} of {clients} clients gain, {own.losing} lose, "
            f"corrected p {format_p(main.p)}{alone if disagree else ''}."
        )

    def cost(self, variant: Variant) -> Cost:
        """Return the cost of a variant for one client."""
        results = [run.result for run in variant.runs]
        settings = RunConfig.of(variant.first.config, str(variant.runs[0].folder))
        steps = settings.steps
        rounds = settings.federated_rounds
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
        """Return the runs, seeds and differing settings of every variant, by its label."""
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
        SamaraError: if the runs cannot be compared; see `read_comparison_set`.
    """
    return Comparison(read_comparison_set(folders))


def format_p(p: float) -> str:
    """Return a p-value as text."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _expected_passes(settings: RunConfig, result: RunResult) -> int | None:
    """Return a client's expected passes for a run that did not count them; None if unknown.

    With only a readout, each example passes once. Otherwise, a step of q queries on B examples
    takes 2·q·B forward passes, or (q + 1)·B with forward differences. With exact gradients, a step
    takes a forward and a backward pass of B examples.
    """
    examples = round(np.mean([client.examples for client in result.clients.values()]))
    if not settings.adapter.inner_layers:
        return examples or None
    queries = settings.queries
    points = queries + 1 if settings.differences == "forward" else 2 * queries
    rows = (2 if settings.gradients == "exact" else points) * settings.batch
    return settings.steps * (settings.federated_rounds + settings.private_rounds) * rows


def _summary(condition: Condition) -> ConditionSummary:
    quality, second = summarize(condition.quality), float(condition.second.mean())
    return ConditionSummary(condition, quality, second, condition.mean_auc)


def _history(run: Run, clients: Sequence[int]) -> dict[int, ValidationPoint]:
    """Return a run's validations by round, for validations in which all given clients took part."""
    result = run.result
    spent = Counter({entry.round: entry.bytes_up + entry.bytes_down for entry in result.rounds})
    # an evaluation's messages may already contain the catch-up of the next instruction
    for event in result.evaluations:
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
