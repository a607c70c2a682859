"""The estimate of a scenario's step, and of the time until a gain in accuracy."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from samara.command import app
from samara.devices.hardware.profile import load_device
from samara.devices.hardware.target import PASSES, estimate_target, step_of
from samara.shared.errors import ConfigError
from samara.shared.model.model_folder import find_embedded_model
from samara.shared.settings.config import RunConfig, load_scenario
from samara.shared.settings.scenarios import scenario_file

ORIN = load_device("orin-nano-8gb")


def config_of(**changes: object) -> RunConfig:
    settings = {"model.path": "tinyllama-1.1b", "task": "sst2", "data.path": "d"}
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return RunConfig.of(settings | {"adapter.layers": "top:2"} | dotted, "test")


def test_a_step_has_the_settings_of_simulate() -> None:
    """Without a scenario, a step has the default settings of a run."""
    inner = step_of(config_of(), ORIN)
    assert (inner.work.queries, inner.work.rank, inner.work.top) == (16, 2, 2)
    assert (inner.work.batch, inner.work.sequence, inner.work.quantization) == (8, 128, "fp32")
    readout = step_of(RunConfig.of({}, "test"), ORIN)
    assert readout.first_pass is not None
    assert readout.work.queries == RunConfig.of({}, "test").queries


def test_all_clients_together_make_the_measured_passes() -> None:
    config = config_of(data__clients=4, batch=8, steps=2, queries=4)
    step = step_of(config, ORIN, 32)
    reached = estimate_target(config, step, 3.0)
    in_round = 4 * 2 * 8 * 8  # clients × steps × examples × losses
    assert reached.rounds == tuple(-(-passes // in_round) for passes in PASSES[3.0])
    assert reached.seconds[0] == pytest.approx(reached.rounds[0] * 2 * step.time.total)
    half = config.model_copy(update={"cohort": config.cohort.model_copy(update={"fraction": 0.5})})
    assert estimate_target(half, step, 3.0).rounds[0] in (
        2 * reached.rounds[0] - 1,
        2 * reached.rounds[0],
    )
    between = estimate_target(config, step, 3.5).rounds[0]
    assert reached.rounds[0] < between < estimate_target(config, step, 4.0).rounds[0]


def test_gains_that_nobody_measured_are_not_promised() -> None:
    config = config_of()
    with pytest.raises(ConfigError, match="gained at most 4 points in measurements"):
        estimate_target(config, step_of(config, ORIN), 5.0)


def test_the_command_names_its_assumption(tmp_path: Path) -> None:
    arguments = "device estimate sst2 --device orin-nano-8gb --model tinyllama-1.1b --target +3"
    told = CliRunner().invoke(app, [*arguments.split(), "--batch", "865", "--seq", "30"])
    assert told.exit_code == 0, told.output
    assert "16 steps a round of 16 directions on up to 865 examples of 30 tokens" in told.output
    assert "+3 points: " in told.output
    assert "Assumed: a readout on SST-2 with MiniLM" in told.output
    told = CliRunner().invoke(app, [*arguments.split(), "--json"])
    assert json.loads(told.output)["target"]["points"] == 3
    told, laptop = (
        CliRunner().invoke(app, ["device", "estimate", "sst2", "--model", "tinyllama-1.1b", *named])
        for named in ([], ["--device", "laptop"])
    )
    assert (told.exit_code, told.output) == (0, laptop.output)


def test_settings_replace_those_of_a_scenario() -> None:
    arguments = "device estimate sst2 --model tinyllama-1.1b --set queries=3 --set steps=5"
    told = CliRunner().invoke(app, arguments.split())
    assert "5 steps a round of 3 directions" in told.output


def test_the_data_of_a_scenario_are_counted(tmp_path: Path) -> None:
    """Without data, an estimate would assume 10,000 examples of 128 tokens."""
    rows = [
        {"text": f"a film of {'very ' * (row % 3)}few words", "label": row % 2} for row in range(40)
    ]
    data = tmp_path / "rows of a survey.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = str(find_embedded_model())
    arguments = ["device", "estimate", "sst2", "--model", model, "--target", "+3"]
    told = CliRunner().invoke(app, [*arguments, "--data", str(data)])
    assert told.exit_code == 0, told.output
    (counted,) = re.findall(r" directions on (\d+) examples of (\d+) tokens", told.output)
    assert 1 <= int(counted[0]) <= 40
    assert 5 <= int(counted[1]) <= 20
    assert " s of computing, 1 to 40 rounds" in told.output
    guessed = CliRunner().invoke(app, arguments)
    assert "on up to 10,000 examples of 128 tokens" in guessed.output
    assert "Use --data DATA to count your own data" in guessed.output
    assert "maximum that the settings allow" not in told.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("sst2 --quantization nf4", "--quantization: the scenario decides this value"),
        ("sst2 --target many", "--target many: give points of accuracy"),
        ("sst2 --target -1", "--target -1: give points of accuracy"),
        ("--target +3", "--target needs a SCENARIO"),
        ("--data d.csv", "--data needs a SCENARIO"),
        ("", "set --model or a SCENARIO"),
        ("sst3", "sst3: neither a scenario file nor a shipped scenario"),
    ],
)
def test_what_an_estimate_lacks_is_named(arguments: str, message: str) -> None:
    words = ["device", "estimate", "--device", "orin-nano-8gb", *arguments.split()]
    told = CliRunner().invoke(app, words)
    assert isinstance(told.exception, ConfigError)
    assert message in str(told.exception)


def test_shipped_scenarios_are_found_by_name() -> None:
    assert load_scenario(scenario_file(Path("mixed-200"))).data.clients == 200
