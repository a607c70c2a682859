"""The feature matrix, pair by pair: existing combinations are accepted, others refused by name."""

import asyncio
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from supported_features import find_supported
from typer.testing import CliRunner

from samara.client.tuning.methods import SPACES
from samara.client.tuning.settings import TuneSettings
from samara.devices.gateway.relay import gateway_app
from samara.server.commands import app as server
from samara.shared.errors import ConfigError
from samara.shared.settings.config import RunConfig
from samara.shared.settings.features import (
    DIMENSIONS,
    EXCLUSIONS,
    TUNING_EXCLUSIONS,
    Combination,
    check_features,
    kind_of,
    refusals,
)
from samara.shared.tasks.catalog import load_task
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE, InProcessGrid

_SETTINGS = ("method", "seed-policy", "gradients")
FLEET = '[{"device": "laptop", "share": 1}]'


def settings_of(combination: Combination) -> dict[str, Any]:
    """Flat settings with a combination's values, as far as settings determine them."""
    own: dict[str, Any] = {"personal.part": "*" if combination.get("method") == "partial" else "x"}
    own["objective"] = "cross-entropy"
    if "label bias" in combination:
        own["adapter.label-bias"] = combination["label bias"] == "trained"
    if combination.get("basis") == "informed":
        own["adapter.basis"] = "basis.safetensors"
    if combination.get("start") == "given":
        own["adapter.start"] = "start.safetensors"
    layers = {"inner": "top:1", "readout": "readout", "both": "readout,top:1"}
    own["adapter.layers"] = layers[combination.get("adapter", "inner")]
    if combination.get("late reports") == "counted":
        own["cohort.late-rounds"] = 2
    if combination.get("aggregation") == "coordinates":
        own["aggregation.rule"] = "median"
    if combination.get("aggregation") == "mean":
        own["aggregation.rule"] = "mean"
    if (mode := combination.get("privacy", "none")) != "none":
        plain = {"measured": "central", "masked": "distributed"}.get(mode, mode)
        own |= {"privacy.mode": plain, "privacy.epsilon": 2.0}
        own["privacy.honest-share"] = 0.5
    if combination.get("privacy") == "measured":
        own["privacy.evaluation"] = "exact"
    if combination.get("privacy") == "masked":
        own |= {"privacy.secure-aggregation": True, "cohort.minimum": 3}
    if combination.get("reports") == "components":
        own["differences"] = "components"
    if combination.get("joint clip") == "adaptive":
        own["privacy.adaptive-clip"] = True
    if combination.get("buckets") == "drawn":
        own |= {"privacy.bucket": 3, "cohort.minimum": 3}
    if combination.get("scalar limit") == "set":
        own["data.scalar-limit"] = 1.0
    if combination.get("clients") == "emulated":
        own["fleet.devices"] = FLEET
    if combination.get("private rounds") == "earlier":
        own["personal.when"] = "every 2 rounds"
    return own | {key: combination[key] for key in _SETTINGS if key in combination}


def check(combination: Combination) -> None:
    """Check a combination like a run: first its settings, then engine, clients and task."""
    config = RunConfig.of(settings_of(combination), "test")
    check_features(dict(combination) | config.features)


def pairs() -> Iterator[dict[str, str]]:
    for (one, ones), (other, others) in combinations(DIMENSIONS.items(), 2):
        for value in ones:
            yield from ({one: value, other: another} for another in others)


def usual(combination: Combination) -> dict[str, str]:
    """The first values of a combination's missing dimensions, unless another value needs others."""
    first = {name: values[0] for name, values in DIMENSIONS.items()}
    if combination.get("method") == "readout":
        first["label bias"] = "trained"
    if combination.get("aggregation") == "coordinates":
        first["seed-policy"] = "shared"
    if combination.get("reports") == "components":
        first |= {"adapter": "readout", "seed-policy": "shared"}
    if combination.get("joint clip") == "adaptive" or combination.get("buckets") == "drawn":
        first["privacy"] = "central"
    if (first | dict(combination))["privacy"] != "none":
        first |= {"seed-policy": "shared", "aggregation": "mean"}
    return first | dict(combination)


@pytest.mark.parametrize("pair", list(pairs()), ids=lambda pair: "-".join(pair.values()))
def test_every_pair_of_values_is_accepted_or_refused_by_name(pair: dict[str, str]) -> None:
    if (whole := find_supported(pair)) is not None:
        assert pair.items() <= whole.items()
        check(whole)
        return
    with pytest.raises(ConfigError) as refused:
        check(usual(pair))
    message = str(refused.value)
    direct = [exclusion for exclusion in EXCLUSIONS if exclusion.excludes(pair)]
    assert direct or refusals(usual(pair))
    for exclusion in direct:
        assert exclusion.reason in message
        assert all(f"{name} {pair[name]}" in message for name in exclusion.values)


def test_the_refusal_of_a_pair_is_heard_when_the_settings_are_read() -> None:
    """If both values are settings, the refusal needs no engine or task."""
    for combination, named in (
        ({"method": "cluster", "clients": "emulated"}, "method cluster with clients emulated"),
        ({"late reports": "counted", "seed-policy": "pool"}, "counted with seed-policy pool"),
    ):
        with pytest.raises(ConfigError, match=named):
            RunConfig.of(settings_of(combination), "test")


def test_every_exclusion_names_values_that_there_are() -> None:
    for exclusion in EXCLUSIONS:
        for name, values in exclusion.values.items():
            assert set(values) < set(DIMENSIONS[name])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"space": "full", "optimizer": "mezo"}, "adapter readout with space full: only the space"),
        ({"space": "prefix", "optimizer": "mezo"}, "set space to lora-fa"),
        ({"optimizer": "mezo"}, "adapter readout with space full"),
        ({"optimizer": "zero-shot"}, "with optimizer zero-shot: the optimizer trains no adapter"),
        ({"optimizer": "icl"}, "with optimizer icl"),
    ],
)
def test_tune_refuses_a_readout_by_name_where_there_is_none(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        TuneSettings.of(settings | {"adapter.layers": "readout"}, "test")


def test_every_exclusion_of_tune_names_values_that_there_are() -> None:
    dimensions = {
        "optimizer": set(SPACES),
        "space": {space for spaces in SPACES.values() for space in spaces},
        "adapter": set(DIMENSIONS["adapter"]),
        "task": set(DIMENSIONS["task"]),
    }
    for exclusion in TUNING_EXCLUSIONS:
        for name, values in exclusion.values.items():
            assert set(values) < dimensions[name]


def test_every_value_is_supported_somewhere_but_tasks_of_tune() -> None:
    unsupported = [
        value
        for name, values in DIMENSIONS.items()
        for value in values
        if find_supported({name: value}) is None
    ]
    assert unsupported == ["open choice"]


def test_methods_and_seed_policies_are_those_of_the_settings() -> None:
    for key in ("method", "seed-policy"):
        for value in DIMENSIONS[key]:
            check({key: value})
        with pytest.raises(ConfigError, match=f"{key}: Input should be"):
            RunConfig.of({key: "other"}, "test")


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("sst2", "classification"),
        ("copa", "listed choice"),
        ("record", "open choice"),
        ("squad", "generation"),
    ],
)
def test_a_task_has_a_kind(task: str, kind: str) -> None:
    assert kind_of(load_task(task)) == kind


def test_a_server_refuses_a_fleet(tmp_path: Path) -> None:
    command = ["up", "--insecure", "--run", str(tmp_path / "run"), "--set"]
    refused = CliRunner().invoke(server, [*command, f"fleet.devices={FLEET}"]).exception
    assert isinstance(refused, ConfigError)
    assert "server up: engine flower with clients emulated" in str(refused)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"method": "partial", "adapter.label-bias": True},
            "method partial with clients phone",
        ),
        ({"adapter.layers": "readout,top:1"}, "adapter both with clients phone"),
        (
            {"method": "readout", "adapter.label-bias": True, "personal.prior": "common"},
            "prior common with clients phone",
        ),
    ],
)
def test_a_gateway_passes_on_no_run_that_phones_cannot_take_part_in(
    settings: dict[str, Any], named: str
) -> None:
    asked: list[object] = []
    gateway = SimpleNamespace(
        ask=lambda *rest: asked.append(rest), clients_of=lambda with_phones: []
    )
    content = RecordDict({"samara": ConfigRecord({"frame": b""})})
    with asyncio.Runner() as runner:
        app = gateway_app(gateway, runner.get_loop())  # type: ignore[arg-type]
        grid = InProcessGrid(app, 1, settings)
        message = grid.create_message(content, "query", FIRST_CLIENT_NODE, "1")
        (reply,) = grid.send_and_receive([message])
    assert named in reply.error.reason
    assert not asked
