"""Automatic values for settings that a run leaves open."""

from pathlib import Path

import pytest

from samara.client.tuning.settings import TuneSettings
from samara.shared.errors import ConfigError
from samara.shared.settings.choices import OPEN, automatic_values, choose, with_overrides
from samara.shared.settings.config import RunConfig
from samara.shared.settings.run_settings import record_settings
from samara.shared.settings.sections import AdapterSettings
from samara.shared.tasks.profiled_loss import PROFILED


def of(**settings: object) -> RunConfig:
    keys = (key.replace("__", ".").replace("_", "-") for key in settings)
    return RunConfig.of(dict(zip(keys, settings.values(), strict=True)), "test")


def test_a_run_with_nothing_set_trains_a_readout_on_all_examples() -> None:
    config = RunConfig()
    assert (config.adapter.layers, config.steps, config.batch) == ("readout:auto", 1, 10_000)
    assert (config.differences, config.learning_rate_schedule) == ("components", "constant")
    assert set(automatic_values(config.flat())) == set(OPEN)


@pytest.mark.parametrize("layers", ["top:1", "readout,top:1", "all", 0])
def test_adapters_inside_the_model_keep_small_steps(layers: object) -> None:
    config = of(adapter__layers=layers)
    assert (config.adapter.layers, config.steps, config.batch) == (str(layers), 2, 32)
    assert "adapter.layers" not in automatic_values(config.flat())


def test_a_basis_is_for_adapters_inside_the_model(tmp_path: Path) -> None:
    config = of(adapter__basis=str(tmp_path / "basis"))
    assert (config.adapter.layers, config.steps, config.batch) == ("top:1", 2, 32)


def test_emulated_devices_are_timed_with_adapters_inside_the_model() -> None:
    fleet = {"fleet.devices": '[{"device": "laptop", "share": 1}]'}
    config = RunConfig.of(fleet, "test")
    assert (config.adapter.layers, config.steps, config.batch) == ("top:1", 2, 32)
    assert RunConfig.of(config.flat(), "test") == config
    both = RunConfig.of(fleet | {"adapter.layers": "readout"}, "test")
    assert (both.adapter.layers, both.differences) == ("readout", "components")


def test_texts_have_no_readout() -> None:
    texts = of(task="texts", data__path="data", model__path="model")
    assert (texts.adapter.layers, texts.steps, texts.batch) == ("top:1", 2, 32)


@pytest.mark.parametrize(
    ("task", "queries"), [("sst2", 16), ("cb", 32), ("trec", 64), ("record", 16), ("none.toml", 16)]
)
def test_the_directions_of_a_readout_follow_from_the_labels(task: str, queries: int) -> None:
    given = {"task": task, "data__path": "data", "model__path": "model"}
    assert of(**given, adapter__layers="readout", differences="central").queries == queries
    assert of(**given, adapter__layers="top:1").queries == 16


@pytest.mark.parametrize(("task", "queries"), [("sst2", 32), ("cb", 64), ("trec", 128)])
def test_a_report_of_components_is_of_one_step(task: str, queries: int) -> None:
    config = of(task=task, data__path="data", model__path="model", differences="components")
    assert (config.steps, config.queries, config.seed_policy) == (1, queries, "shared")
    assert (config.adapter.distribution, config.learning_rate_schedule) == (
        "orthogonal",
        "constant",
    )
    assert RunConfig.of(config.flat(), "test") == config


def test_what_is_set_is_kept() -> None:
    config = of(adapter__layers="readout:auto", steps=3, queries=7, batch=5)
    assert (config.steps, config.queries, config.batch) == (3, 7, 5)
    kept = of(adapter__layers="readout", learning_rate_schedule="constant")
    assert kept.learning_rate_schedule == "constant"
    chosen = {"adapter.layers", "learning-rate-schedule", "evaluate.every", "evaluate.best"}
    chosen |= {"differences", "seed-policy", "objective", "adapter.label-bias"}
    assert set(automatic_values(config.flat())) == chosen


def test_a_readout_alone_reports_components() -> None:
    for own in ({}, {"method": "ditto", "personal__rounds": 1}, {"seed_policy": "shared"}):
        config = of(**own)
        assert (config.differences, config.seed_policy) == ("components", "shared"), own
        assert config.adapter.distribution == "orthogonal"
    assert of(queries=8).queries == 8
    assert of(queries=8).differences == "components"


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"adapter__layers": "top:1"}, "inside the model"),
        ({"adapter__layers": "readout,top:1"}, "inside the model"),
        ({"method": "cluster"}, "clusters are found"),
        ({"gradients": "exact"}, "gradients is exact"),
        ({"objective": "profiled-cross-entropy"}, "objective is profiled"),
        ({"cohort__late_rounds": 1}, "cohort.late-rounds is 1"),
        ({"seed_policy": "pool"}, "seed-policy is pool"),
        ({"steps": 8}, "steps is set"),
        ({"steps": 1}, "steps is set"),
        ({"batch": 8}, "batch is set"),
        ({"epsilon": 0.001}, "epsilon is set"),
        ({"clip": 1.0}, "clip is set"),
        ({"learning_rate": 0.1}, "learning-rate is set"),
        ({"personal__learning_rate": 0.1}, "personal.learning-rate is set"),
    ],
)
def test_settings_that_components_lack_keep_projected_gradients(
    own: dict[str, object], reason: str
) -> None:
    config = of(**own)
    assert (config.differences, config.adapter.distribution) == ("central", "gaussian")
    assert reason in automatic_values(config.flat())["differences"]
    assert RunConfig.of(config.flat(), "test") == config


@pytest.mark.parametrize("mode", ["central", "distributed", "local"])
def test_noise_keeps_projected_gradients(mode: str) -> None:
    noise = {"privacy__mode": mode, "privacy__epsilon": 8.0, "aggregation__rule": "mean"}
    if mode == "distributed":
        noise["privacy__honest_share"] = 0.8
    config = of(**noise, seed_policy="shared")
    assert (config.differences, config.steps, config.seed_policy) == ("central", 16, "shared")
    assert "under noise" in automatic_values(config.flat())["differences"]


def test_a_report_that_is_set_has_no_automatic_reason() -> None:
    for own in ({"differences": "central"}, {"differences": "forward", "steps": 8}):
        config = of(**own)
        assert config.differences == own["differences"]
        assert "differences" not in automatic_values(config.flat())


def test_other_settings_lead_to_other_choices() -> None:
    changed = RunConfig.of(with_overrides(RunConfig().flat(), {"steps": 8}), "test")
    assert changed == of(steps=8)
    assert RunConfig.of(with_overrides(changed.flat(), {"steps": 0}), "test") == RunConfig()
    central = of(differences="central")
    kept = RunConfig.of(with_overrides(central.flat(), {"rounds": 2}), "test")
    assert kept == of(differences="central", rounds=2)


def test_a_step_size_that_is_set_stays_as_it_is() -> None:
    assert of(learning_rate=10.0).learning_rate_schedule == "constant"
    assert (
        of(learning_rate=10.0, learning_rate_schedule="linear").learning_rate_schedule == "linear"
    )
    assert of(adapter__layers="top:1").learning_rate_schedule == "constant"


@pytest.mark.parametrize(
    ("rounds", "schedule"), [(1, "constant"), (3, "constant"), (4, "linear"), (40, "linear")]
)
def test_the_step_size_of_few_rounds_does_not_fall(rounds: int, schedule: str) -> None:
    config = of(rounds=rounds, differences="central")
    assert config.learning_rate_schedule == schedule
    assert "learning-rate-schedule" in automatic_values(config.flat())


@pytest.mark.parametrize("rounds", ["three", [3], None])
def test_rounds_that_are_no_number_are_refused_with_a_message(rounds: object) -> None:
    with pytest.raises(ConfigError, match="rounds"):
        of(rounds=rounds)


@pytest.mark.parametrize("layers", ["readout", "top:1"])
def test_every_choice_has_a_reason_of_its_own(layers: str) -> None:
    """A reason explains one value; a reason that fits all settings would explain none."""
    reasons = [choice.reason for choice in choose({"adapter.layers": layers}).values()]
    assert len(set(reasons)) == len(reasons) == len(OPEN)


def test_a_readout_returns_to_its_best_round_where_rounds_are_validated() -> None:
    assert RunConfig().evaluate.best == "loss"
    assert of(evaluate__every=0).evaluate.best is False
    assert of(adapter__layers="top:1").evaluate.best is False
    assert of(method="readout", adapter__label_bias=True).evaluate.best is False
    assert of(evaluate__best=True).evaluate.best is True
    with pytest.raises(ConfigError, match=r"evaluate\.best"):
        of(evaluate__best="accuracy")


def test_every_round_of_a_readout_that_returns_to_one_is_validated() -> None:
    assert RunConfig().evaluate.every == 1
    assert of(evaluate__best="loss").evaluate.every == 1
    assert of(evaluate__every=7).evaluate.every == 7
    assert of(adapter__layers="top:1").evaluate.every == 10
    assert of(method="readout", adapter__label_bias=True).evaluate.every == 10
    assert of(evaluate__best=False).evaluate.every == 10
    with pytest.raises(ConfigError, match=r"evaluate\.every"):
        of(evaluate__every=-2)


def test_runs_of_earlier_versions_keep_their_id() -> None:
    """They had a constant step size, and this setting is not part of the id."""
    assert "learning-rate-schedule" not in of(learning_rate_schedule="constant").identity()
    assert of(differences="central").identity()["learning-rate-schedule"] == "linear"


def test_a_choice_is_made_once() -> None:
    for config in (RunConfig(), of(adapter__layers="top:2"), of(steps=7)):
        assert RunConfig.of(config.flat(), "test") == config
    given = RunConfig(adapter=AdapterSettings(layers="all", rank=3))
    assert (given.adapter.layers, given.adapter.rank, given.steps) == ("all", 3, 2)


def test_open_and_explicit_settings_are_the_same_run() -> None:
    explicit = of(
        adapter__layers="readout:auto",
        differences="central",
        seed_policy="independent",
        steps=16,
        queries=16,
        batch=10_000,
    )
    assert explicit.identity() == of(differences="central").identity()
    components = of(differences="components", steps=1, queries=32, batch=10_000)
    assert components.identity() == RunConfig().identity()


def test_tune_trains_adapters_inside_the_model() -> None:
    assert TuneSettings().adapter.layers == "top:1"
    assert TuneSettings.of({"adapter.layers": "all"}, "test").adapter.layers == "all"


@pytest.mark.parametrize(
    ("changes", "profiled"),
    [
        ({}, True),
        ({"method": "global"}, True),
        ({"adapter.label-bias": True}, True),
        ({"adapter.label-bias": "auto"}, True),
        ({"adapter.label-bias": False}, False),
        ({"objective": PROFILED}, True),
        ({"evaluate.best": "loss"}, True),
        ({"evaluate.best": True}, False),
        ({"objective": "cross-entropy"}, False),
        ({"method": "local"}, False),
        ({"method": "readout", "adapter.label-bias": True}, False),
        ({"adapter.layers": "readout,top:1"}, False),
        ({"adapter.basis": "basis"}, False),
        ({"adapter.start": "start"}, False),
        ({"privacy.mode": "central", "privacy.epsilon": 8.0, "seed-policy": "shared"}, False),
        ({"task": "texts", "data.path": "data", "model.path": "model"}, False),
        ({"fleet.devices": '[{"device": "laptop", "share": 1}]'}, False),
    ],
    ids=str,
)
def test_labels_inside_the_model_train_the_profiled_loss(
    changes: dict[str, object], profiled: bool
) -> None:
    given = {"adapter.layers": "top:1", "aggregation.rule": "mean", **changes}
    config = RunConfig.of(given, "test")
    assert (config.objective == PROFILED) == profiled
    assert config.terms.reports_shifts == profiled
    assert RunConfig.of(config.flat(), "test") == config
    received = RunConfig.of(config.sent(), "test")
    assert (received.objective, received.adapter) == (config.objective, config.adapter)
    assert ("objective" in automatic_values(config.flat())) == (
        not {"objective", "adapter.label-bias"} & changes.keys() or profiled or "method" in changes
    )


def test_an_override_chooses_objective_and_label_bias_again() -> None:
    inside = {"adapter.layers": "top:1"}
    for before, after in ((inside, {"method": "local"}), (inside, {"adapter.layers": "readout"})):
        other = RunConfig.of(with_overrides(of(adapter__layers="top:1").flat(), after), "test")
        assert (other.objective, other.adapter.label_bias) == ("cross-entropy", False)
        back = RunConfig.of(with_overrides(other.flat(), before | {"method": "global"}), "test")
        assert (back.objective, back.adapter.label_bias) == (PROFILED, True)


def test_an_override_keeps_a_label_bias_that_is_needed() -> None:
    given = {"adapter.layers": "top:1", "adapter.label-bias": True}
    base = RunConfig.of(given, "test").flat()
    for after in ({"method": "readout"}, {"objective": PROFILED}, {"rounds": 3}):
        assert RunConfig.of(with_overrides(base, after), "test").adapter.label_bias
    plain = RunConfig.of(given | {"objective": "cross-entropy"}, "test").flat()
    assert RunConfig.of(with_overrides(plain, {"rounds": 3}), "test").adapter.label_bias


def test_an_override_keeps_a_label_bias_that_is_off() -> None:
    given = {"adapter.layers": "top:1", "adapter.label-bias": False, "objective": PROFILED}
    base = RunConfig.of(given, "test")
    other = RunConfig.of(with_overrides(base.flat(), {"rounds": 3}), "test")
    assert (other.objective, other.adapter.label_bias) == (PROFILED, False)


def test_private_intercepts_are_label_biases() -> None:
    assert of(method="readout").adapter.label_bias
    with pytest.raises(ConfigError, match=r"set adapter\.label-bias to true"):
        of(method="readout", adapter__label_bias=False)


def test_a_run_from_before_keeps_its_objective(tmp_path: Path) -> None:
    given = {"adapter.layers": "top:1", "out": str(tmp_path)}
    before = RunConfig.of(given | {"objective": "cross-entropy"}, "test")
    assert "objective" not in before.identity()
    record_settings(tmp_path, before)
    assert RunConfig.given(given, "test") == before
