import hashlib
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from helpers import ROOT
from pydantic import ValidationError

from samara.client.limits.device_settings import with_device_settings
from samara.client.tuning.settings import IDENTITY_FILE, TuneSettings
from samara.devices.live.settings import resolve_device_settings
from samara.overrides import config_of
from samara.shared.errors import ConfigError
from samara.shared.settings.choices import OPEN
from samara.shared.settings.config import METHODS, RunConfig, load_scenario
from samara.shared.settings.fleet import DeviceGroup
from samara.shared.settings.run_settings import settings_of_run
from samara.shared.settings.setting import (
    SETTINGS_FILE,
    Section,
    _warn_of_former_key,
    _warn_of_unread_key,
    describe,
    fixed_in,
    parse_assignment,
    unknown_keys,
)

RETIRED = {key for key, setting in describe(RunConfig).items() if setting.retired}
SCENARIOS = sorted((ROOT / "simulations" / "scenarios").glob("*.toml"))


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def mistakes(settings: Mapping[str, Any]) -> list[str]:
    """Return the lines of the message about wrong settings, without its heading."""
    with pytest.raises(ConfigError) as caught:
        RunConfig.of(settings, "here")
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"here: {len(lines)} mistake{'s' if lines[1:] else ''} in the settings"
    return [line.strip() for line in lines]


def test_the_run_config_of_the_flower_app_has_every_setting_with_its_default() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table = flattened(project["tool"]["flwr"]["app"]["config"])
    expected = {k: v for k, v in (RunConfig().flat() | OPEN).items() if k not in RETIRED}
    assert table == expected
    assert {key: type(value) for key, value in table.items()} == {
        key: type(value) for key, value in expected.items()
    }


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_shipped_scenario_is_sound(path: Path) -> None:
    assert isinstance(load_scenario(path), RunConfig)


def test_there_are_shipped_scenarios() -> None:
    assert SCENARIOS


def test_flat_settings_read_back_to_the_same_configuration() -> None:
    config = RunConfig.of(
        {"learning-rate": 0.25, "adapter": {"rank": 2, "label-bias": True}, "out": "there"}, "test"
    )
    flat = config.flat()
    assert flat["learning-rate"] == 0.25
    assert flat["adapter.label-bias"] is True
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    assert RunConfig.of(flat, "test") == config


def test_nested_and_dotted_settings_agree() -> None:
    nested = {"rounds": 3, "data": {"clients": 5, "partition": "user"}, "adapter": {"rank": 8}}
    dotted = {"rounds": 3, "data.clients": 5, "data.partition": "user", "adapter.rank": 8}
    mixed = {"rounds": 3, "data": {"clients": 5}, "data.partition": "user", "adapter.rank": 8}
    assert RunConfig.of(nested, "a") == RunConfig.of(dotted, "b") == RunConfig.of(mixed, "c")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().rounds = 5  # type: ignore[misc]


def test_more_threads_than_torch_can_start_are_refused() -> None:
    assert RunConfig.of({"threads": 1024}, "test").threads == 1024
    with pytest.raises(ConfigError, match=r"threads: .* less than or equal to 1024"):
        RunConfig.of({"threads": 100_000}, "test")


def test_five_mistakes_are_reported_at_once() -> None:
    lines = mistakes(
        {
            "rounds": 0,
            "learning-rate": "fast",
            "data": {"partition": "fair"},
            "adapter.rnak": 4,
            "cohort.fraction": 1.5,
        }
    )
    assert len(lines) == 5
    keys = ("rounds", "learning-rate", "data.partition", "adapter.rnak", "cohort.fraction")
    for key in keys:
        assert sum(line.startswith(f"{key}: ") for line in lines) == 1
    assert any("got 'fast'" in line for line in lines)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("adapter.rnak", "adapter.rank"),
        ("learning_rate", "learning-rate"),
        ("lerning-rate", "learning-rate"),
        ("data.client", "data.clients"),
        ("memory_budget", "memory-budget"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(key: str, nearest: str) -> None:
    assert mistakes({key: 1}) == [f"{key}: there is no such setting; did you mean {nearest}?"]


@pytest.mark.parametrize("layers", ["readout:0", "top:1,top:2", "top", "readout:2/0"])
def test_a_refused_form_of_layers_names_the_forms(layers: str) -> None:
    (mistake,) = mistakes({"adapter.layers": layers})
    assert mistake.startswith(f"adapter.layers: {layers!r} is not a value of this setting: ")
    assert "`top:2`" in mistake
    assert "`readout:2/3`" in mistake


def test_a_key_like_no_other_suggests_nothing() -> None:
    assert mistakes({"xyzzy": 1}) == ["xyzzy: there is no such setting"]


def test_a_setting_of_several_types_is_one_mistake() -> None:
    (mistake,) = mistakes({"evaluate.best": "x"})
    assert mistake.startswith("evaluate.best: Input should be a valid boolean")
    assert mistake.endswith("or 'auto' or 'loss' (got 'x')")


@pytest.mark.parametrize("settings", [{"model": "x"}, {"model": "x", "model.path": "y"}])
def test_a_section_is_not_a_setting(settings: dict[str, Any]) -> None:
    (line,) = mistakes(settings)
    assert line.startswith("model: ")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_number_that_is_not_finite_or_negative_is_a_mistake(bad: float) -> None:
    assert len(mistakes({"learning-rate": bad, "epsilon": bad, "clip": bad})) == 3


def test_the_scalars_of_a_round_must_fit_a_frame() -> None:
    RunConfig.of({"steps": 1024, "queries": 1024}, "test")
    (line,) = mistakes({"steps": 1024, "queries": 1025})
    assert line == "steps × queries must be at most 1,048,576"


@pytest.mark.parametrize("layers", ["all", "top:2", "3", "0,2,11"])
def test_layers_are_all_the_top_or_listed(layers: str) -> None:
    assert RunConfig.of({"adapter.layers": layers}, "test").adapter.layers == layers


@pytest.mark.parametrize("layers", ["", "top", "top:0", "1,", "-1", "1, 2", "all\n"])
def test_other_layers_are_a_mistake(layers: str) -> None:
    assert len(mistakes({"adapter.layers": layers})) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds=20", ("rounds", 20)),
        (" epsilon = 1e-3 ", ("epsilon", 1e-3)),
        ("adapter.label-bias=true", ("adapter.label-bias", True)),
        ("seed-policy=shared", ("seed-policy", "shared")),
        ('data.path="a b"', ("data.path", "a b")),
        ("data.path=a=b", ("data.path", "a=b")),
        ("out= some/where ", ("out", "some/where")),
        ("out=", ("out", "")),
        ("adapter.layers=top:2", ("adapter.layers", "top:2")),
        ("adapter.layers=0,2", ("adapter.layers", "0,2")),
        ("out=[1]", ("out", "[1]")),
        ("out=2026-01-31", ("out", "2026-01-31")),
    ],
)
def test_an_assignment_is_a_key_and_a_toml_value_or_text(
    text: str, expected: tuple[str, object]
) -> None:
    assert parse_assignment(text) == expected


@pytest.mark.parametrize("text", ["", "rounds", "=3", " =3"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [("adapter.layers=3", "adapter.layers", "3"), ("out=2026", "out", "2026")],
)
def test_a_text_setting_may_look_like_a_number(
    tmp_path: Path, assignment: str, key: str, value: str
) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("")
    assert load_scenario(path, [assignment]).flat()[key] == value


def test_assignments_override_the_scenario_and_the_last_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("rounds = 5\n[adapter]\nrank = 2\nalpha = 8.0\n")
    config = load_scenario(path, ["adapter.rank=3", "adapter.rank=6"])
    assert (config.rounds, config.adapter.rank, config.adapter.alpha) == (5, 6, 8.0)


def test_mistakes_of_file_and_assignments_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("rounds = 0\n")
    with pytest.raises(ConfigError, match=r"options: 2 mistakes(.|\n)*rounds(.|\n)*batch"):
        load_scenario(path, ["batch=-1"])


def test_a_key_below_a_setting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("rounds = 5\n")
    with pytest.raises(ConfigError, match=r"rounds\.x: there is no such setting"):
        load_scenario(path, ["rounds.x=3"])


def test_a_scenario_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    for content in (None, b"rounds = ", b"\xff"):
        if content is not None:
            path.write_bytes(content)
        known = r"scenario\.toml: (.*cannot be read|not valid TOML|is not UTF-8)"
        with pytest.raises(ConfigError, match=known):
            load_scenario(path)


def test_the_page_on_settings_names_every_key_and_no_other() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    settings, fixed = (
        list(re.findall(r"^\| `([^`]+)`", part, re.M)) for part in page.split("## Fixed values")
    )
    assert set(settings) == RunConfig().flat().keys() - RETIRED
    assert set(fixed) == RETIRED | fixed_in(RunConfig).keys() | fixed_in(TuneSettings).keys()


def test_every_setting_says_what_it_means() -> None:
    for section in (RunConfig, TuneSettings, DeviceGroup):
        for key, setting in describe(section).items():
            assert len(setting.help) > 8, key
            assert not setting.help.endswith("."), key


def test_what_tune_shares_with_a_run_is_the_same_or_says_why_not() -> None:
    run, tune = describe(RunConfig), describe(TuneSettings)
    for key in run.keys() & tune.keys():
        of_run, of_tune = (_declared(kind, key) for kind in (RunConfig, TuneSettings))
        assert (of_run != of_tune) == bool(tune[key].apart), key
    assert not [key for key, one in tune.items() if one.apart and key not in run]


def _declared(section: type[Section], key: str) -> tuple[object, ...]:
    """Type, default, range and help of a setting."""
    *sections, last = key.replace("-", "_").split(".")
    for name in sections:
        section = section.model_fields[name].annotation  # type: ignore[assignment]
    field = section.model_fields[last]
    return str(field.annotation), field.default, str(field.metadata), field.description


def test_what_a_setting_refers_to_exists() -> None:
    for section in (RunConfig, TuneSettings, DeviceGroup):
        methods = {name for s in describe(section).values() for name in s.read_by}
        key_of_methods = "optimizer" if section is TuneSettings else "method"
        for key, setting in describe(section).items():
            page = setting.page.split("#")[0]
            assert not page or (ROOT / "docs" / page).is_file(), key
        if methods:
            built_in = get_args(section.model_fields[key_of_methods].annotation) or METHODS
            assert methods <= set(built_in)


def test_tables_made_of_the_code_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_device_owns_model_data_task_and_execution() -> None:
    owned = {key for key, setting in describe(RunConfig).items() if setting.owner == "device"}
    assert {key for key in owned if "." not in key} == {
        *("gradients", "grouping", "micro-batch", "memory-budget", "task", "threads"),
        "trunk-cache-folder",
    }
    assert {key.split(".")[0] for key in owned if "." in key} == {"model", "data"}


def test_a_live_client_keeps_its_own_values_and_takes_the_servers_others() -> None:
    server = RunConfig.of({"rounds": 7, "threads": 4, "cohort.newcomers": 3}, "server")
    own = {"threads": 1, "data.clients": 1, "data.alpha": 0.25, "rounds": 9}
    config = with_device_settings(server, RunConfig.of(own, "device"))
    assert (config.rounds, config.threads, config.cohort.newcomers) == (7, 1, 3)
    assert (config.data.clients, config.data.alpha) == (1, 0.25)


def test_the_owner_of_a_device_may_say_when_private_rounds_are_taken() -> None:
    server = RunConfig.of({"personal.when": "every 5 rounds", "personal.rounds": 7}, "server")
    silent, own = RunConfig(), RunConfig.of({"personal.when": "end"}, "device")
    assert with_device_settings(server, silent).personal.when == "every 5 rounds"
    assert with_device_settings(server, own).personal.when == "end"
    assert with_device_settings(server, own).personal.rounds == 7
    asked = ["personal.when=on-data", "personal.retrain=true"]
    settings = resolve_device_settings("embedded", "messages", "messages", "cpu", asked)
    assert (settings["personal.when"], settings["personal.retrain"]) == ("on-data", True)
    with pytest.raises(ConfigError, match="the server decides this setting"):
        resolve_device_settings("embedded", "messages", "messages", "cpu", ["personal.rounds=3"])


def test_a_shipped_name_wins_over_a_file_of_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("embedded", "messages", "sst2", "mine"):
        Path(name).mkdir()
    settings = resolve_device_settings("embedded", "messages", "sst2", "cpu", [])
    given = settings["model.path"], settings["data.path"], settings["task"]
    assert given == ("embedded", "messages", "sst2")
    settings = resolve_device_settings("mine", "./messages", "./sst2", "cpu", [])
    given = settings["model.path"], settings["data.path"], settings["task"]
    assert given == tuple(str(tmp_path / name) for name in ("mine", "messages", "sst2"))


def test_a_run_whose_private_rounds_come_at_the_end_keeps_its_id() -> None:
    assert "personal.when" not in RunConfig().identity()
    assert "personal.retrain" not in RunConfig().identity()
    always = RunConfig.of({"personal.when": "always"}, "test")
    assert always.identity()["personal.when"] == "always"


def test_a_former_key_is_read_and_its_present_one_named(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_former_key.cache_clear()
    for _ in range(2):
        assert RunConfig.of({"model.device": "cuda"}, "test").model.torch_device == "cuda"
    (line,) = caplog.messages
    assert line.startswith("model.device: this setting is called model.torch-device now")
    assert mistakes({"model.device": "cpu", "model.torch-device": "cpu"}) == [
        "model.device: there is no such setting; it is now called model.torch-device, which is "
        "also given"
    ]


def test_settings_of_a_server_of_an_earlier_version_are_known() -> None:
    earlier = RunConfig().flat() | {"adapter.seed": 0, "cohort.grouping-rounds": 16}
    assert unknown_keys(RunConfig, earlier | {"newer": 1}) == ["newer"]
    settings = resolve_device_settings("embedded", "messages", "messages", "cpu", [])
    assert settings["model.torch-device"] == "cpu"
    given = ["model.device=cuda"]
    settings = resolve_device_settings("embedded", "messages", "messages", "cpu", given)
    assert settings["model.torch-device"] == "cuda"
    with pytest.raises(ConfigError, match="the server decides this setting"):
        resolve_device_settings(
            "embedded", "messages", "messages", "cpu", ["cohort.grouping-rounds=3"]
        )


def test_a_value_that_is_fixed_now_stays_in_the_run_id_and_others_are_refused() -> None:
    central = RunConfig.of({"differences": "central"}, "test")
    stored = central.flat() | {"adapter.seed": 0, "adapter.distribution": "gaussian"}
    stored |= {"cohort.most-elements": 2**25}
    assert RunConfig.of(stored, "test") == central
    assert "cohort.most-elements" not in RunConfig().flat()
    assert RunConfig().identity()["adapter.seed"] == 0
    assert mistakes({"cohort.most-elements": 7}) == [
        "cohort.most-elements: there is no such setting any more; its value is always 33554432; "
        "leave it out",
    ]


def test_a_run_that_was_recorded_with_a_retired_value_goes_on_with_it() -> None:
    stored = {"adapter.seed": 5, "adapter.distribution": "rademacher"}
    config = RunConfig.of(stored, "test")
    assert (config.adapter.seed, config.adapter.distribution) == (5, "rademacher")
    assert config.identity().items() >= stored.items()


OLD_SCENARIO = """
rounds = 8
steps = 2
queries = 4
batch = 12
micro-batch = 4
seed = 3
threads = 1
trunk-cache = 1048576
adapter.layers = "top:1"
seed-policy = "pool"
pool-size = 64

[model]
family = "causal"
stream-direct = true

[data]
clients = 3
partition = "dirichlet"
alpha = 0.3

[cohort]
patience = 3
empty-rounds = 10
"""
"""The settings of the run of `tests/shared/recorded_settings.json`, written by the version
that had all of these keys."""


def test_a_run_that_was_recorded_before_goes_on_in_its_folder_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_unread_key.cache_clear()
    scenario, run = tmp_path / "old.toml", tmp_path / "run"
    scenario.write_text(OLD_SCENARIO)
    with pytest.raises(ConfigError) as caught:
        load_scenario(scenario, [f"out={run}"])
    named = [line.strip().split(": ")[0] for line in str(caught.value).splitlines()[1:-1]]
    assert named == ["micro-batch", "pool-size", "model.family"]
    assert "it follows from the model folder" in str(caught.value)
    run.mkdir()
    recorded = (ROOT / "tests" / "shared" / "recorded_settings.json").read_text()
    (run / SETTINGS_FILE).write_text(recorded)
    config = load_scenario(scenario, [f"out={run}"])
    assert settings_of_run(config) == json.loads(recorded)
    assert (config.examples_in_pass, config.model.family) == (4, "causal")
    assert [line.split(": ")[0] for line in caplog.messages] == [
        "trunk-cache",
        "model.stream-direct",
    ]
    with pytest.raises(ConfigError, match="micro-batch: is no longer a setting of new runs"):
        load_scenario(scenario, [f"out={run}", "micro-batch=2"])


@pytest.mark.parametrize("stored", ["readout", "top:1"])
def test_a_run_goes_on_with_the_layers_that_it_began_with(stored: str, tmp_path: Path) -> None:
    begun = RunConfig.of({"adapter.layers": stored, "out": str(tmp_path)}, "test")
    (tmp_path / SETTINGS_FILE).write_text(json.dumps(settings_of_run(begun)))
    open_layers: dict[str, Any] = {"out": str(tmp_path)}
    assert RunConfig.given(open_layers, "test").adapter.layers == stored
    assert RunConfig.given({}, "test").adapter.layers == "readout:auto"
    other = open_layers | {"adapter.layers": "readout:2"}
    assert RunConfig.given(other, "test").adapter.layers == "readout:2"


def test_a_run_goes_on_with_the_reports_that_it_began_with(tmp_path: Path) -> None:
    begun = RunConfig.of({"differences": "central", "out": str(tmp_path)}, "test")
    (tmp_path / SETTINGS_FILE).write_text(json.dumps(settings_of_run(begun)))
    assert RunConfig.given({"out": str(tmp_path)}, "test") == begun
    assert RunConfig.given({}, "test").differences == "components"
    other = {"out": str(tmp_path), "differences": "components"}
    assert RunConfig.given(other, "test").differences == "components"


def test_a_recorded_tuning_goes_on_with_a_retired_value(tmp_path: Path) -> None:
    given = {"optimizer": "mezo", "adapter.seed": 5, "out": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"adapter\.seed: is no longer a setting of new runs"):
        TuneSettings.given(given, "tune")
    identity = TuneSettings.of(given, "tune").identity()
    (tmp_path / IDENTITY_FILE).write_text(json.dumps({"config": identity}))
    assert TuneSettings.given(given, "tune").adapter.seed == 5


def test_keys_given_to_a_device_or_in_python_are_refused_too() -> None:
    with pytest.raises(ConfigError, match="micro-batch: is no longer a setting of new runs"):
        resolve_device_settings("embedded", "messages", "messages", "cpu", ["micro-batch=2"])
    for scenario in ({"rounds": 2}, RunConfig()):
        with pytest.raises(ConfigError, match="micro-batch: is no longer a setting of new runs"):
            config_of(scenario, {"micro_batch": 2})


def test_the_bytes_of_a_pass_decide_its_examples_and_what_is_kept() -> None:
    usual, wide = RunConfig(), RunConfig.of({"memory-budget": 2**20}, "test")
    assert (usual.examples_in_pass, usual.trunk_cache) == (8, 2**28)
    assert (wide.examples_in_pass, wide.trunk_cache) == (0, 2**23)


def test_the_identity_of_a_run_is_that_of_the_version_with_all_keys() -> None:
    """The digests are older than any removal, renaming or automatic value of a key."""
    central = {"adapter.layers": "readout", "differences": "central"}
    run = RunConfig.of({"seed": 7, "rounds": 5, **central}, "test")
    asked = {"optimizer": "mezo", "seed": 7, "in-place": False}  # a copy was kept then
    tuned = TuneSettings.of(asked, "test").complete(2)
    digests = []
    for settings in (run, tuned):
        whole = json.dumps(settings.identity(), sort_keys=True)
        digests.append(hashlib.sha256(whole.encode()).hexdigest()[:16])
    assert digests == ["57e33fe4118c1c23", "1cfdc802fc09d390"]


def test_own_data_needs_an_own_model_and_task() -> None:
    own = {"data.path": "mine.jsonl", "model.path": "model", "task": "sst2"}
    assert RunConfig.of(own, "here").data.path == "mine.jsonl"
    assert mistakes({**own, "model.path": "embedded"})[0].startswith("model.path: the embedded")
    assert mistakes({**own, "task": "messages"})[0].startswith("task: messages asks")
    assert RunConfig.of({"model.path": "model"}, "here").data.path == "messages"
