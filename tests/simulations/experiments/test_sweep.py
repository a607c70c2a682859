"""Settings are chosen on validation alone, with an equal number of trials for every method."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from results import column, evaluation, result_of, write_result

from samara.shared.errors import ConfigError, SamaraError
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig, load_scenario
from samara.simulations.experiments.sweep import SHARE, Sweep, sweep, validation_figures

BASE = RunConfig.of({"rounds": 12, "personal.rounds": 4, "data.clients": 5}, "test")


class Runs:
    """Made-up runs: the closer the learning rate is to 0.3, the better the validation."""

    def __init__(self) -> None:
        self.configs: list[RunConfig] = []

    def __call__(self, config: RunConfig) -> tuple[float, float]:
        self.configs.append(config)
        rng = np.random.default_rng(0)
        rate = config.learning_rate
        assert rate != "auto"
        share = 0.9 - abs(rate - 0.3)
        result = result_of(5, **config.flat())
        own = dict.fromkeys(range(5), share)
        result["evaluations"].append(
            evaluation(9, "validation", **{"personalized": column(own, rng)})
        )
        best_on_test = dict.fromkeys(range(5), 0.5 + rate)
        result["evaluations"].append(evaluation(9, "test", **{"global": column(best_on_test, rng)}))
        return validation_figures(RunResult.read(write_result(Path(config.out), result)))


def plan(**changes: Any) -> Sweep:
    rates = [0.1, 0.2, 0.3, 0.4, 0.5]
    content = {
        "methods": ["finetune", "ditto"],
        "trials": 4,
        "rungs": 3,
        "settings": {"learning-rate": rates, "private-share": [0.25, 0.5]},
        "only": {"ditto": {"personal.pull": [0.1, 0.2]}},
    }
    return Sweep.model_validate(content | changes)


def test_every_method_has_as_many_trials_and_the_better_half_goes_on(tmp_path: Path) -> None:
    runs = Runs()
    trials = list(sweep(BASE, plan(), runs, tmp_path))
    spent = Counter((trial.method, trial.rung) for trial in trials)
    assert spent == {
        (method, rung): count
        for method in ("finetune", "ditto")
        for rung, count in ((1, 4), (2, 2), (3, 1))
    }
    for trial, config in zip(trials, runs.configs, strict=True):
        assert config.rounds + config.personal.rounds == {1: 4, 2: 8, 3: 16}[trial.rung]
        assert config.method == trial.method
    for method in ("finetune", "ditto"):
        own = [trial for trial in trials if trial.method == method]
        first = sorted((t for t in own if t.rung == 1), key=lambda t: -t.accuracy)
        assert {t.number for t in own if t.rung == 2} == {t.number for t in first[:2]}
        chosen = load_scenario(tmp_path / f"{method}.toml")
        nearest = min(abs(float(t.choices["learning-rate"]) - 0.3) for t in own)
        assert abs(float(chosen.learning_rate) - 0.3) == pytest.approx(nearest)
        assert (chosen.rounds + chosen.personal.rounds, chosen.out) == (16, "")
        assert chosen.data.clients == 5
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert len(written) == len(trials)


def test_the_same_trials_are_drawn_again_and_others_by_another_seed() -> None:
    one, again = (plan().trials_of("finetune", 0) for _ in range(2))
    assert one == again
    assert len({json.dumps(point) for point in one}) == 4
    assert plan().trials_of("finetune", 1) != one
    assert len(plan(trials=1000).trials_of("ditto", 0)) == 20


@pytest.mark.parametrize(
    ("method", "tried"),
    [
        ("global", {"learning-rate"}),
        ("local", {"personal.learning-rate"}),
        ("mixture", {"learning-rate", "personal.learning-rate", "private-share"}),
        ("cluster", {"learning-rate", "cohort.clustering-rounds"}),
    ],
)
def test_a_method_tries_the_settings_that_it_reads(method: Any, tried: set[str]) -> None:
    settings = {"learning-rate": [0.1, 0.2], "personal.learning-rate": [0.1], SHARE: [0.2, 0.5]}
    own = plan(settings=settings, only={"cluster": {"cohort.clustering-rounds": [2, 4]}})
    assert {key for point in own.trials_of(method, 0) for key in point} == tried


def test_what_is_only_for_a_method_must_mean_something_to_it() -> None:
    for method, key in (("global", "personal.pull"), ("local", SHARE)):
        with pytest.raises(ValidationError, match=f"only.{method}: {method} does not use {key}"):
            plan(only={method: {key: [0.1]}})


def test_only_validation_and_only_clients_that_train_count(tmp_path: Path) -> None:
    result, rng = result_of(4, cohort__newcomers=1), np.random.default_rng(0)
    shares = {0: 0.5, 1: 0.6, 2: 0.7, 3: 0.1}
    result["evaluations"].append(evaluation(20, "validation", **{"x": column(shares, rng)}))
    read = RunResult.read(write_result(tmp_path, result))
    assert validation_figures(read)[0] == pytest.approx(0.6)
    result["evaluations"] = [e for e in result["evaluations"] if e["split"] == "test"]
    with pytest.raises(SamaraError, match="examples, by which a sweep chooses settings; use"):
        validation_figures(RunResult.read(write_result(tmp_path, result)))


def test_a_wrong_setting_is_found_before_the_first_run(tmp_path: Path) -> None:
    runs = Runs()
    with pytest.raises(ConfigError, match="no such setting"):
        list(sweep(BASE, plan(settings={"learning-rat": [0.1]}), runs, tmp_path))
    with pytest.raises(ConfigError, match=r"private-share: 2\.0 is not a share"):
        list(sweep(BASE, plan(settings={"private-share": [2]}), runs, tmp_path))
    with pytest.raises(ConfigError, match="no such setting"):  # of the method that comes last
        list(sweep(BASE, plan(only={"ditto": {"personal.pul": [0.1]}}), runs, tmp_path))
    assert not runs.configs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methods = [", "not valid TOML"),
        ('methods = ["best"]\nrungs = 0', "2 mistakes"),
        ("trials = 3", "methods: Field required"),
        (
            'methods = ["local"]\n[only.local]\nlearning-rate = [1]',
            "only.local: local does not use learning-rate",
        ),
        ('methods = ["ditto"]\ntrails = 3', "there is no such setting; did you mean trials"),
    ],
)
def test_mistakes_in_a_sweep_file_are_reported_at_once(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Sweep.read(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        Sweep.read(tmp_path / "nothing.toml")
