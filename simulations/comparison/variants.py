"""Runs that may be compared, put in order: repetitions with other seeds belong together."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shared.config import RunConfig, reads
from shared.errors import SamaraError
from shared.result import RunResult
from shared.settings import describe
from simulations.comparison.columns import (
    COMMON,
    GLOBAL,
    TRAINED,
    UNTRAINED,
    ZERO_SHOT,
    Figures,
    client_columns,
)
from simulations.comparison.statistics import Numbers

_LISTED = 5
BASELINES = ("global", "local")
"""Methods that the others are held against."""


@dataclass(frozen=True)
class Run:
    """A finished run and where it is."""

    folder: Path
    result: RunResult

    @cached_property
    def columns(self) -> dict[str, Figures]:
        """See `client_columns`."""
        try:
            return client_columns(self.result)
        except SamaraError as error:
            raise SamaraError(f"{self.folder}: {error}") from error

    @cached_property
    def fingerprints(self) -> dict[int, Any]:
        """Of every client's examples, by split."""
        clients = self.result.clients
        found = {index: client.facts.get("fingerprints") for index, client in clients.items()}
        if missing := [client for client, own in found.items() if not own]:
            raise SamaraError(
                f"{self.folder}: {_clients(missing)} told no fingerprint of the data, so it "
                "cannot be told whether others were trained on the same; run it again"
            )
        return found


@dataclass(frozen=True, eq=False)
class Arm:
    """One way of serving the clients in one variant; a client's figures are means over seeds.

    Attributes:
        variant: label of the variant.
        name: the column.
        accuracy, macro_f1: float64 [clients].
    """

    variant: str
    name: str
    accuracy: Numbers
    macro_f1: Numbers


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seeds.

    Attributes:
        label: its method, where each has one of its own; else A, B, C …, in the order of the
            command line.
        runs: at least one.
        arms: by column, of the clients that trained.
        new: the same of newcomers, who did not; empty without any.
    """

    label: str
    runs: tuple[Run, ...]
    arms: dict[str, Arm]
    new: dict[str, Arm]

    @property
    def method(self) -> str:
        """How these runs make a client's model."""
        return str(self.first.config.get("method", "finetune"))

    @property
    def served(self) -> str:
        """The column of the model that the method gives a client in the end."""
        return (self.personal or [GLOBAL])[-1]

    @property
    def first(self) -> RunResult:
        """The result that stands for what all of them have in common."""
        return self.runs[0].result

    @property
    def personal(self) -> list[str]:
        """Columns with private rounds on top of the federation's model."""
        return [name for name in self.arms if name not in COMMON]


@dataclass(frozen=True)
class Field:
    """All that is compared.

    Attributes:
        variants: at least one.
        clients: whose figures every arm has, in ascending order; arms hold theirs in this order.
        newcomers: the same of clients that never trained the global model.
        left_out: clients of which some figure is missing.
        differing: settings in which the variants differ, each with a value per variant.
    """

    variants: tuple[Variant, ...]
    clients: tuple[int, ...]
    newcomers: tuple[int, ...]
    left_out: tuple[int, ...]
    differing: dict[str, tuple[object, ...]]

    def own(self, variant: Variant) -> dict[str, object]:
        """The settings in which a variant differs from others, as far as its method reads them."""
        index = self.variants.index(variant)
        return {
            key: values[index]
            for key, values in self.differing.items()
            if reads(variant.method, key)
        }

    @property
    def methods(self) -> bool:
        """Whether the variants make clients' models by different methods."""
        return len({variant.method for variant in self.variants}) > 1

    def shown(self, new: bool = False) -> list[Arm]:
        """The arms of a table: all, or of different methods what each gives a client in the end.

        Args:
            new: the newcomers' arms instead of the others'.
        """
        held = [variant.new if new else variant.arms for variant in self.variants]
        if not self.methods:
            return [arm for arms in held for arm in arms.values()]
        common: dict[str, Arm] = {}
        for arms in held:
            common = {name: arms[name] for name in UNTRAINED if name in arms} | common
        served = zip(held, self.variants, strict=True)
        ordered = [common[name] for name in UNTRAINED if name in common]
        return ordered + [arms[v.served] for arms, v in served if v.served in arms]

    def pairs(self) -> list[tuple[Arm, Arm]]:
        """Which arm is tested against which.

        Of one variant: every personal arm, or without one the global, against all that is common.
        Of different methods: what each gives a client, against what local and global give and
        against all that needs no training. Otherwise every trained arm against the same one of
        the first variant.
        """
        first, *others = self.variants
        if self.methods:
            plain = [v.arms[v.served] for v in self.variants if v.method in BASELINES]
            untrained = [arm for arm in self.shown() if arm.name in UNTRAINED]
            return [
                (variant.arms[variant.served], against)
                for variant in self.variants
                for against in [*plain, *untrained]
                if against is not variant.arms[variant.served]
                and (variant.method not in BASELINES or against.name in UNTRAINED)
            ]
        if others:
            return [
                (arm, first.arms[name])
                for variant in others
                for name, arm in variant.arms.items()
                if name in first.arms and (name not in COMMON or name in TRAINED)
            ]
        tested = first.personal or [GLOBAL]
        baselines = [name for name in COMMON if name in first.arms and name not in tested]
        return [(first.arms[name], first.arms[other]) for name in tested for other in baselines]

    def main_pair(self) -> tuple[Arm, Arm]:
        """The pair that answers the question that one comes with.

        Of different methods the best, against the best of what it is held against.
        """
        if self.methods:
            pairs = self.pairs()
            methods = {v.label for v in self.variants if v.method not in BASELINES}
            own = [pair for pair in pairs if pair[0].variant in methods] or pairs
            return max(own, key=lambda pair: (pair[0].accuracy.mean(), pair[1].accuracy.mean()))
        first, last = self.variants[0], self.variants[-1]
        names = [name for name in last.arms if name in first.arms]
        if first is not last:
            return last.arms[names[-1]], first.arms[names[-1]]
        against = GLOBAL if first.personal else ZERO_SHOT
        return first.arms[names[-1]], first.arms[against]


def field_of(folders: Sequence[Path]) -> Field:
    """Read runs and put them in order.

    Raises:
        SamaraError: if a run is not finished, or differs from the first in data, split or model.
    """
    runs = [Run(folder, RunResult.read(folder)) for folder in folders]
    for run in runs[1:]:
        _check(run, runs[0])
    groups: dict[str, list[Run]] = {}
    for run in runs:
        config = run.result.config
        kept = {key: value for key, value in config.items() if _makes_a_variant(key)}
        group = groups.setdefault(json.dumps(kept, sort_keys=True), [])
        for other in group:
            if other.result.config.get("seed") == config.get("seed"):
                raise SamaraError(f"{run.folder}: the same run as {other.folder}; name it once")
        group.append(run)
    everyone = [set(figures) for run in runs for figures in run.columns.values()]
    complete = sorted(set.intersection(*everyone))
    new = {client for run in runs for client in run.result.newcomers}
    clients = [client for client in complete if client not in new]
    newcomers = [client for client in complete if client in new]
    if not clients:
        raise SamaraError("no client has figures under every column of every run")
    variants = tuple(
        Variant(
            label,
            tuple(group),
            _arms(label, group, clients),
            _arms(label, group, newcomers) if newcomers else {},
        )
        for label, group in zip(_labels(list(groups.values())), groups.values(), strict=True)
    )
    configs = [variant.first.config for variant in variants]
    keys = {key: None for config in configs for key in config if _makes_a_variant(key)}
    differing = {key: tuple(config.get(key) for config in configs) for key in keys}
    return Field(
        variants,
        tuple(clients),
        tuple(newcomers),
        tuple(sorted(set.union(*everyone) - set(complete))),
        {key: values for key, values in differing.items() if len(set(values)) > 1},
    )


def _makes_a_variant(key: str) -> bool:
    """Return whether runs with other values of a setting are no repetitions of each other."""
    described = describe(RunConfig).get(key)
    return described is None or described.makes_a_variant


def _arms(label: str, runs: Sequence[Run], clients: Sequence[int]) -> dict[str, Arm]:
    def mean(name: str, metric: str) -> Numbers:
        of_runs = [
            [getattr(run.columns[name][client], metric) for client in clients] for run in runs
        ]
        means: Numbers = np.mean(of_runs, axis=0)
        return means

    names = [name for name in runs[0].columns if all(name in run.columns for run in runs)]
    return {
        name: Arm(label, name, mean(name, "accuracy"), mean(name, "macro_f1")) for name in names
    }


def _check(run: Run, first: Run) -> None:
    """Refuse a run of another model or of other examples, and say in what they differ."""
    reasons = []
    if run.result.model_id != first.result.model_id:
        ids = f"{run.result.model_id[:12]}, not {first.result.model_id[:12]}"
        reasons.append(f"the base model is {ids}")
    own, others = run.fingerprints, first.fingerprints
    if own.keys() != others.keys():
        reasons.append(f"it has {len(own)} clients, not {len(others)}, or others")
    elif unlike := [client for client in own if own[client] != others[client]]:
        splits = sorted(
            {split for client in unlike for split in _unlike(own[client], others[client])}
        )
        reasons.append(
            f"{_clients(unlike)} hold other examples"
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
    """A to Z, then A1, B1 …"""
    turn, place = divmod(index, 26)
    return chr(ord("A") + place) + (str(turn) if turn else "")
