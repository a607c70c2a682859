"""Repetitions: a seed also draws the split, unless the settings contain `data.seed`."""

from pathlib import Path
from typing import Any

import pytest
from data_rows import TASK, write_jsonl
from results import result_of, write_result

from samara.shared.errors import ConfigError, SamaraError
from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.tasks.data import load_examples
from samara.simulations.comparison.comparison import Comparison, compare_runs
from samara.simulations.comparison.seeds import describe_seeds
from samara.simulations.comparison.tables import render_comparison
from samara.simulations.experiments.experiments import with_seeds


@pytest.mark.parametrize(
    ("given", "drawn"), [("", [0, 1, 7]), ("data.seed=3", [3, 3, 3]), ("data.seed=-1", [0, 1, 7])]
)
def test_an_open_data_seed_follows_the_seed(given: str, drawn: list[int], tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("rounds = 3\n")
    assignments = [given] if given else []
    runs = with_seeds(
        lambda seed: load_scenario(scenario, [*assignments, f"seed={seed}", "out=runs"]),
        [0, 1, 7],
    )
    assert [config.data.seed for config in runs.values()] == drawn
    assert [config.out for config in runs.values()] == [f"runs/seed-{seed}" for seed in (0, 1, 7)]
    sentence = describe_seeds([config.flat() for config in runs.values()])
    assert ("all seeds use the same split" in sentence) == bool(given == "data.seed=3")


def test_a_recorded_run_keeps_its_settings_and_a_wrong_seed_is_named_once() -> None:
    recorded = RunConfig.of({"seed": 7, "data.seed": 0}, "result")
    assert RunConfig.of(recorded.flat(), "again") == recorded
    assert RunConfig.of({}, "test").identity()["data.seed"] == 0
    with pytest.raises(ConfigError, match="1 mistake in the settings\n  seed: "):
        RunConfig.of({"seed": "seven"}, "test")


def test_other_seeds_have_other_test_labels(tmp_path: Path) -> None:
    """The interval of the most frequent answer therefore has a width."""
    rows = [{"text": f"film {n}", "label": int(n % 5 == 0), "user": str(n % 4)} for n in range(200)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    ones = set()
    for seed in range(5):
        data = RunConfig.of({"seed": seed}, "test").data
        examples = load_examples(path, TASK, data.seed, 0, data.split)
        ones.add(sum(e.label for e in examples if e.split == "test"))
    assert len(ones) > 1


def drawn_by(seed: int, **settings: Any) -> dict[str, Any]:
    """A result whose clients have the examples of a seed's split."""
    result = result_of(seed=seed, **settings)
    assert result["config"]["data.seed"] == seed
    for client, own in result["clients"].items():
        own["fingerprints"] = {s: f"{int(client):02x}{seed}{s[1]}" for s in own["fingerprints"]}
    return result


def compared(folder: Path, *results: dict[str, Any]) -> Comparison:
    names = [write_result(folder / str(index), one) for index, one in enumerate(results)]
    return compare_runs(names)


def test_runs_whose_seeds_draw_the_split_are_repetitions(tmp_path: Path) -> None:
    comparison = compared(tmp_path, drawn_by(0), drawn_by(1), drawn_by(2))
    [variant] = comparison.runs.variants
    assert len(variant.runs) == 3
    assert comparison.splits() == [
        "each seed uses its own split of the data (data.seed equals seed)"
    ]
    assert any(
        "each seed uses" in str(p.renderables[0])
        for p in render_comparison(comparison)
        if hasattr(p, "renderables")
    )


def test_methods_are_compared_on_the_same_seeds_alone(tmp_path: Path) -> None:
    pairs = [drawn_by(s, **{"learning_rate": rate}) for rate in (0.1, 0.2) for s in (0, 1)]
    assert len(compared(tmp_path / "a", *pairs).runs.variants) == 2
    with pytest.raises(SamaraError, match="the seeds determine the splits"):
        compared(tmp_path / "b", *pairs[:3])
    changed = drawn_by(1, learning_rate=0.2)
    changed["clients"]["3"]["fingerprints"]["test"] = "ffff"
    with pytest.raises(SamaraError, match=r"the examples of client 3 differ \(test\)"):
        compared(tmp_path / "c", *pairs[:3], changed)


def test_another_source_is_no_repetition(tmp_path: Path) -> None:
    other = drawn_by(1)
    other["config"]["data.path"] = "other.jsonl"
    with pytest.raises(SamaraError, match="another data source"):
        compared(tmp_path, drawn_by(0), other)
