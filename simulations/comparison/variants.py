"""The runs of a comparison, grouped into variants of runs that differ only in their seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from samara.shared.errors import SamaraError
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig, reads
from samara.shared.settings.setting import describe
from samara.shared.terms.columns import GLOBAL
from samara.simulations.comparison.columns import (
    COMMON,
    TRAINED,
    UNTRAINED,
    Figures,
    client_columns,
)
from samara.simulations.comparison.measure import figures_of
from samara.simulations.comparison.seeds import DATA_SEED, seeds_draw_splits
from samara.simulations.comparison.statistics import Numbers

_LISTED = 5
_PLAIN = ("global", "local")
"""Methods that serve as the reference for other methods."""


@dataclass(frozen=True)
class Run:
    """A finished run and its folder."""

    folder: Path
    result: RunResult

    @cached_property
    def columns(self) -> dict[str, Figures]:
        """The columns of the run, from `client_columns`."""
        try:
            return client_columns(self.result)
        except SamaraError as error:
            raise SamaraError(f"{self.folder}: {error}") from error

    @cached_property
    def fingerprints(self) -> dict[int, Any]:
        """The fingerprints of the examples by client; each value is a mapping by split.

        Raises:
            SamaraError: if a client has reported no fingerprint.
        """
        clients = self.result.clients
        fingerprints = {
            index: client.facts.get("fingerprints") for index, client in clients.items()
        }
        if missing := [client for client, known in fingerprints.items() if not known]:
            raise SamaraError(
                f"{self.folder}: {_clients(missing)} reported no fingerprint of the data, as live "
                "clients never do. Without fingerprints, a comparison cannot check that the runs "
                "used the same data; compare only this run, or simulate it again"
            )
        return fingerprints


@dataclass(frozen=True, eq=False)
class Condition:
    """A column of a variant, in which each client's metrics are means over seeds.

    Attributes:
        variant: label of the variant.
        name: name of the column.
        quality: quality of each client, float64 [clients]; see
            `samara.simulations.comparison.measure.Figures`.
        second: secondary metric of each client, float64 [clients].
        auc: AUC of each client, float64 [clients]; NaN if a client's AUC is unknown.
    """

    variant: str
    name: str
    quality: Numbers
    second: Numbers
    auc: Numbers

    @property
    def mean_auc(self) -> float | None:
        """The mean AUC over the clients with a known AUC; None if no client has one."""
        known = self.auc[~np.isnan(self.auc)]
        return float(known.mean()) if len(known) else None


@dataclass(frozen=True)
class Variant:
    """A group of runs that differ only in their seeds.

    Attributes:
        label: name of the method if all variants have different methods; otherwise A, B, C …, in
            the order of the command line.
        runs: the repetitions, at least one.
        conditions: conditions of the clients that trained, by column.
        newcomer_conditions: conditions of the newcomers, by column; empty without newcomers.
    """

    label: str
    runs: tuple[Run, ...]
    conditions: dict[str, Condition]
    newcomer_conditions: dict[str, Condition]

    @property
    def method(self) -> str:
        """The method of these runs."""
        return str(self.first.config.get("method", "finetune"))

    @property
    def final_column(self) -> str:
        """The column of a client's final model."""
        return (self.personal or [GLOBAL])[-1]

    @property
    def first(self) -> RunResult:
        """The result of the first repetition, for facts that all repetitions share."""
        return self.runs[0].result

    @property
    def personal(self) -> list[str]:
        """The columns with private rounds on top of the global model."""
        return [name for name in self.conditions if name not in COMMON]


@dataclass(frozen=True)
class ComparisonSet:
    """The variants of a comparison, and the clients that are compared.

    Attributes:
        variants: the variants, at least one.
        clients: ascending indices of the clients for which every condition has metrics; a
            condition's metrics are in this order.
        newcomers: ascending indices of clients with all metrics that never trained the global
            model.
        left_out: indices of clients with a missing metric.
        differing: settings in which the variants differ, each with a value per variant.
    """

    variants: tuple[Variant, ...]
    clients: tuple[int, ...]
    newcomers: tuple[int, ...]
    left_out: tuple[int, ...]
    differing: dict[str, tuple[object, ...]]

    def differing_settings(self, variant: Variant) -> dict[str, object]:
        """Return the differing settings that a variant's method uses, with the variant's values."""
        index = self.variants.index(variant)
        return {
            key: values[index]
            for key, values in self.differing.items()
            if reads(variant.method, key)
        }

    @property
    def compares_methods(self) -> bool:
        """Return whether the variants have different methods."""
        return len({variant.method for variant in self.variants}) > 1

    def displayed(self, newcomers: bool = False) -> list[Condition]:
        """Return the conditions to display.

        In a comparison of methods, these are the untrained columns and each method's final column.
        Otherwise they are all conditions.

        Args:
            newcomers: whether to return the newcomers' conditions instead.
        """
        by_variant = [
            variant.newcomer_conditions if newcomers else variant.conditions
            for variant in self.variants
        ]
        if not self.compares_methods:
            return [condition for conditions in by_variant for condition in conditions.values()]
        common: dict[str, Condition] = {}
        for conditions in by_variant:
            common = {name: conditions[name] for name in UNTRAINED if name in conditions} | common
        final = zip(by_variant, self.variants, strict=True)
        ordered = [common[name] for name in UNTRAINED if name in common]
        return ordered + [
            conditions[v.final_column] for conditions, v in final if v.final_column in conditions
        ]

    def pairs(self) -> list[tuple[Condition, Condition]]:
        """Return the pairs of conditions to test.

        - One variant: each personal condition (or the global condition if there is none) against
          all common columns.
        - Different methods: each final column against the final columns of `local` and `global`,
          and against all untrained columns.
        - Otherwise: each trained condition against the same column of the first variant.
        """
        first, *others = self.variants
        if self.compares_methods:
            plain = [v.conditions[v.final_column] for v in self.variants if v.method in _PLAIN]
            untrained = [condition for condition in self.displayed() if condition.name in UNTRAINED]
            return [
                (variant.conditions[variant.final_column], against)
                for variant in self.variants
                for against in [*plain, *untrained]
                if against is not variant.conditions[variant.final_column]
                and (variant.method not in _PLAIN or against.name in UNTRAINED)
            ]
        if others:
            return [
                (condition, first.conditions[name])
                for variant in others
                for name, condition in variant.conditions.items()
                if name in first.conditions and (name not in COMMON or name in TRAINED)
            ]
        tested = first.personal or [GLOBAL]
        baselines = [name for name in COMMON if name in first.conditions and name not in tested]
        return [
            (first.conditions[name], first.conditions[other])
            for name in tested
            for other in baselines
        ]

    def main_pair(self) -> tuple[Condition, Condition]:
        """Return the pair of conditions that the headline reports.

        With different methods, the pair is the best method and the best condition with which it is
        compared. With one variant, the pair is the personal model (or the global model) and the
        best other column. A gain that the base model, a constant answer or an intercept would also
        achieve is therefore not reported. With several variants of one method, the pair is the
        last column of the last variant and of the first variant.
        """
        if self.compares_methods:
            pairs = self.pairs()
            methods = {v.label for v in self.variants if v.method not in _PLAIN}
            candidates = [pair for pair in pairs if pair[0].variant in methods] or pairs
            return max(
                candidates, key=lambda pair: (pair[0].quality.mean(), pair[1].quality.mean())
            )
        first = self.variants[0]
        last = self.variants[-1]
        names = [name for name in last.conditions if name in first.conditions]
        if first is not last:
            return last.conditions[names[-1]], first.conditions[names[-1]]
        against = [first.conditions[name] for name in names[:-1] if name in COMMON]
        return first.conditions[names[-1]], max(against, key=lambda each: each.quality.mean())


def read_comparison_set(folders: Sequence[Path]) -> ComparisonSet:
    """Read finished runs, and group them into variants.

    Raises:
        SamaraError: if a run is not finished, or differs from the first run in data, split or
            model.
    """
    runs = [Run(folder, RunResult.read(folder)) for folder in folders]
    drawn = seeds_draw_splits([run.result.config for run in runs])
    known = {key: None for run in runs for key in run.result.config if _makes_a_variant(key)}
    if drawn:
        known.pop(DATA_SEED, None)
    if len(runs) > 1:
        _check_data(runs, drawn)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        config = run.result.config
        kept = {key: _value_in(config, key) for key in known}
        group = groups.setdefault(json.dumps(kept, sort_keys=True), [])
        for other in group:
            if other.result.config.get("seed") == config.get("seed"):
                raise SamaraError(
                    f"{run.folder} is the same run as {other.folder}; name only one of them"
                )
        group.append(run)
    if drawn:
        _check_seeds(list(groups.values()))
    everyone = [set(figures) for run in runs for figures in run.columns.values()]
    complete = sorted(set.intersection(*everyone))
    new = {client for run in runs for client in run.result.newcomers}
    clients = [client for client in complete if client not in new]
    newcomers = [client for client in complete if client in new]
    if not clients:
        raise SamaraError(
            "no client has metrics in every column of every run; compare runs with the same clients"
        )
    variants = tuple(
        Variant(
            label,
            tuple(group),
            _conditions(label, group, clients),
            _conditions(label, group, newcomers) if newcomers else {},
        )
        for label, group in zip(_labels(list(groups.values())), groups.values(), strict=True)
    )
    configs = [variant.first.config for variant in variants]
    differing = {key: tuple(_value_in(config, key) for config in configs) for key in known}
    return ComparisonSet(
        variants,
        tuple(clients),
        tuple(newcomers),
        tuple(sorted(set.union(*everyone) - set(complete))),
        {key: values for key, values in differing.items() if len(set(values)) > 1},
    )


def _check_data(runs: Sequence[Run], drawn: bool) -> None:
    """Check that all runs use the first run's model, and runs with equal splits equal examples.

    Raises:
        SamaraError: if a run has another model or other examples.
    """
    first: dict[object, Run] = {}
    for run in runs:
        split = run.result.config.get(DATA_SEED) if drawn else None
        _check(run, runs[0], first.setdefault(split, run))


def _check_seeds(groups: Sequence[Sequence[Run]]) -> None:
    """Check that variants have equal seeds if the seeds determine different splits.

    Raises:
        SamaraError: if their seeds differ.
    """

    def seeds(group: Sequence[Run]) -> set[object]:
        return {run.result.config.get("seed") for run in group}

    first = groups[0][0]
    for group in groups[1:]:
        alike = all(run.fingerprints == first.fingerprints for run in (*groups[0], *group))
        if seeds(group) != seeds(groups[0]) and not alike:
            these, those = (", ".join(sorted(map(str, seeds(own)))) for own in (group, groups[0]))
            raise SamaraError(
                f"{group[0].folder} (seeds {these}) is not comparable with {first.folder} (seeds "
                f"{those}), because the seeds determine the splits; run both with the same seeds, "
                "or set data.seed"
            )


def _makes_a_variant(key: str) -> bool:
    """Return whether a difference in this setting puts runs into different variants."""
    described = describe(RunConfig).get(key)
    return described is None or described.makes_a_variant


def _value_in(config: Mapping[str, object], key: str) -> object:
    """Return the value of a setting in a result.

    If an older result lacks the setting, return the value that the versions without it used.
    """
    described = describe(RunConfig).get(key)
    if key in config or described is None:
        return config.get(key)
    return described.default if described.before is None else described.before


def _conditions(label: str, runs: Sequence[Run], clients: Sequence[int]) -> dict[str, Condition]:
    def means(name: str) -> tuple[Numbers, Numbers, Numbers]:
        by_run = [[run.columns[name][client] for client in clients] for run in runs]
        of_runs = [[(*figures_of(one), one.known_auc) for one in own] for own in by_run]
        quality, second, auc = np.mean(of_runs, axis=0).reshape(-1, 3).T
        return quality, second, auc

    names = [name for name in runs[0].columns if all(name in run.columns for run in runs)]
    return {name: Condition(label, name, *means(name)) for name in names}


def _check(run: Run, first: Run, reference: Run) -> None:
    """Check that a run uses the model of the first run and the examples of a reference run.

    Args:
        run: run to check.
        first: first run of the comparison.
        reference: first run with the same split as `run`.

    Raises:
        SamaraError: if the run's model or examples differ; the message names the differences.
    """
    reasons = []
    if run.result.model_id != first.result.model_id:
        ids = f"{run.result.model_id[:12]}, not {first.result.model_id[:12]}"
        reasons.append(f"the base model is {ids}")
    these = run.fingerprints
    those = reference.fingerprints
    all_clients = first.fingerprints
    paths = {each.result.config.get("data.path") for each in (run, first)}
    if run is reference and these != all_clients and len(paths) > 1:
        reasons.append("it has another data source and split, so the data cannot be compared")
    if these.keys() != all_clients.keys():
        reasons.append(f"its {len(these)} clients are not the same as the {len(all_clients)} there")
    elif unlike := [client for client in these if these[client] != those[client]]:
        splits = sorted(
            {split for client in unlike for split in _unlike(these[client], those[client])}
        )
        reasons.append(
            f"the examples of {_clients(unlike)} differ"
            + (f" ({', '.join(splits)})" if splits else "")
        )
    if not reasons:
        return
    settings = [
        f"{key} is {value!r}, not {first.result.config.get(key)!r}"
        for key, value in run.result.config.items()
        if key.startswith(("data.", "model.")) or key == "task"
        if value != first.result.config.get(key)
    ]
    raise SamaraError(
        f"{run.folder}: not comparable with {first.folder}: "
        + "; ".join(reasons + settings)
        + "; compare runs of the same data, split and model"
    )


def _unlike(one: Any, other: Any) -> list[str]:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return []
    known = ("train", "validation", "test")
    return [split for split in known if one.get(split) != other.get(split)]


def _clients(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_LISTED]))
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return f"client{'s' * (len(numbers) > 1)} {shown}{more}"


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    methods = [str(group[0].result.config.get("method", "finetune")) for group in groups]
    if len(groups) > 1 and len(set(methods)) == len(groups):
        return methods
    return [_letter(index) for index in range(len(groups))]


def _letter(index: int) -> str:
    """Return a label: A to Z for indices 0 to 25, then A1, B1 …"""
    turn, letter = divmod(index, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")
