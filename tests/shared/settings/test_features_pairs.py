"""Every supported pair of values runs in a tiny round, as far as this process can run it."""

import json
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bases import basis_for
from federations import Settings, config_of
from starts import start_for
from supported_features import combination_of, supported_indices

from samara.shared.results.result import RunResult
from samara.shared.settings.features import DIMENSIONS, Combination
from samara.simulations.simulate import simulate


@cache
def covering() -> tuple[Combination, ...]:
    """A small set of combinations for this process that contains all supported pairs."""
    table, names = supported_indices().astype(np.int64), list(DIMENSIONS)
    clients = [DIMENSIONS["clients"].index(value) for value in ("simulated", "emulated")]
    by_flower = table[:, names.index("engine")] == DIMENSIONS["engine"].index("flower")
    table = table[np.isin(table[:, names.index("clients")], clients) & ~by_flower]
    dimensions = list(combinations(range(table.shape[1]), 2))
    most = max(map(len, DIMENSIONS.values()))
    codes = {(a, b): table[:, a] * most + table[:, b] for a, b in dimensions}
    missing = {(*place, code) for place in dimensions for code in np.unique(codes[place]).tolist()}
    new_pairs = np.full(len(table), len(dimensions))
    chosen = list[Combination]()
    while missing:
        best = int(np.argmax(new_pairs))
        chosen.append(combination_of(table[best]))
        for place in dimensions:
            pair = (*place, int(codes[place][best]))
            if pair in missing:
                missing.remove(pair)
                new_pairs -= codes[place] == pair[2]
    return tuple(chosen)


def listed_choices(folder: Path) -> Path:
    rows = [
        {
            "premise": f"the {['film', 'meal', 'walk'][i % 3]} was {['very', 'not'][i // 3 % 2]}",
            "choice1": ["good", "warm"][i % 2],
            "choice2": ["bad", "cold"][i // 2 % 2],
            "question": ["cause", "effect"][i // 5 % 2],
            "label": i // 3 % 2,
        }
        for i in range(60)
    ]
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def run(settings: Settings, tmp_path: Path) -> Callable[[Combination], RunResult]:
    def run(combination: Combination) -> RunResult:
        own: dict[str, Any] = {
            "method": combination["method"],
            "seed-policy": combination["seed-policy"],
            "adapter.label-bias": combination["label bias"] == "trained",
            "cohort.late-rounds": 2 if combination["late reports"] == "counted" else 0,
            "gradients": combination["gradients"],
            "differences": {"components": "components"}.get(combination["reports"], "central"),
            "adapter.layers": {
                "inner": "top:2",
                "readout": "readout",
                "both": "readout,top:2",
            }[combination["adapter"]],
            "aggregation.rule": {
                "reports": "median-norm",
                "mean": "mean",
                "coordinates": "trimmed-mean",
            }[combination["aggregation"]],
            "personal.part": {"readout": "label bias"}.get(combination["adapter"], "*.1.*"),
            "cohort.clustering-rounds": 1,
            "rounds": 1,
            "personal.rounds": 1,
            "personal.when": "always" if combination["private rounds"] == "earlier" else "end",
            "steps": 1,
            "pool-size": 8,
            "personal.learning-rate": 0.1,
            "data.scalar-limit": 10.0 if combination["scalar limit"] == "set" else 0.0,
        }
        if (mode := combination["privacy"]) != "none":
            own["privacy.mode"] = {"measured": "central", "masked": "distributed"}.get(mode, mode)
            own |= {"privacy.epsilon": 2.0, "privacy.honest-share": 0.5}
        if combination["privacy"] == "measured":
            own["privacy.evaluation"] = "exact"
        if combination["privacy"] == "masked":
            own |= {"privacy.secure-aggregation": True, "cohort.minimum": 3}
        own["privacy.adaptive-clip"] = combination["joint clip"] == "adaptive"
        if combination["buckets"] == "drawn":
            own |= {"privacy.bucket": 3, "cohort.minimum": 3}
        if combination["basis"] == "informed":
            own |= {"adapter.basis": basis_for(settings, tmp_path), "personal.part": "basis"}
        if combination["task"] == "listed choice":
            own |= {"task": "copa", "data.path": str(listed_choices(tmp_path))}
        if combination["task"] == "generation":
            own["task"] = "texts"
        if combination["start"] == "given":
            own["adapter.start"] = start_for(settings | own, tmp_path)
        if combination["clients"] == "emulated":
            own["fleet.devices"] = '[{"device": "laptop", "share": 1}]'
        recorded = None
        if combination["cohorts"] == "recorded":
            recorded = simulate(config_of(settings | own, out=str(tmp_path / "recorded")))
        return RunResult.read(simulate(config_of(settings | own), cohorts_from=recorded))

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "combination",
    [
        pytest.param(combination, marks=pytest.mark.exhaustive if index >= 5 else ())
        for index, combination in enumerate(covering())
    ],
    ids=lambda combination: " ".join(combination.values()),
)
def test_supported_pairs_run(
    combination: Combination, run: Callable[[Combination], RunResult]
) -> None:
    result = run(combination)
    assert result.config["method"] == combination["method"]
    if combination["privacy"] not in ("none", "measured"):
        assert not result.evaluations
        assert not any(event.refused for event in result.rounds)
        return
    (column,) = list(result.evaluations[-1].columns.values())[-1:]
    assert set(column.clients) == {0, 1, 2}
    assert not any(event.refused for event in [*result.rounds, *result.evaluations])


def test_all_values_of_this_process_are_covered() -> None:
    chosen = covering()
    dimensions = ("method", "seed-policy", "cohorts", "late reports", "label bias", "gradients")
    for name in (*dimensions, "basis", "privacy", "joint clip", "buckets"):
        assert {combination[name] for combination in chosen} == set(DIMENSIONS[name])
