"""The signed scenario as a file of hostile bytes, and its folder on the client."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from federations import config_of
from helpers import layout_of
from scenarios import operator_key, signed

from samara.client.protocol.scenario_folder import ScenarioFolder, describe_scenarios, take_scenario
from samara.devices.live.checks.preflight import Outcome, check_scenario
from samara.server.live.scenario_signing import create_operator_key, sign_scenario
from samara.shared.errors import SamaraError, ScenarioError
from samara.shared.protocol.signing import SigningKey
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_id_of
from samara.shared.terms.signed_scenario import (
    MAX_SCENARIO_BYTES,
    SignedScenario,
    describe_operator,
    read_scenario,
)
from samara.shared.terms.values import TERMS

CONFIG = config_of({}, rounds=17, steps=3, queries=5)


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return operator_key(tmp_path)


def with_line(data: bytes, number: int, change: Any) -> bytes:
    """Return the file after `change` has changed the values of a line; the format stays valid."""
    lines = data.split(b"\n")
    values = json.loads(lines[number])
    change(values)
    lines[number] = json.dumps(values, sort_keys=True).encode()
    return b"\n".join(lines)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "cluster", "seed_policy": "shared"},
        {"aggregation__rule": "mean", "learning_rate": 0.3, "epsilon": 1},
    ],
)
def test_a_file_gives_the_run_id_and_the_terms_of_the_settings(
    changes: dict[str, Any], key: SigningKey
) -> None:
    config = config_of(CONFIG.flat(), **changes)
    scenario = SignedScenario.decode(signed(config, key).encode())
    layout = layout_of()
    assert scenario.run_id(layout.hash, bytes(32)) == run_id_of(config, layout, bytes(32))
    assert scenario.terms == config.terms
    assert RunConfig.of(scenario.settings, "test").terms == config.terms
    assert scenario.operator == key.public


def test_what_it_says_is_in_plain_words(key: SigningKey) -> None:
    config = config_of(CONFIG.flat(), batch=32, evaluate__every=2, epsilon=0.5)
    said = "\n".join(signed(config, key).describe())
    rounds = config.terms.rounds
    for words in (
        f"signed by operator {describe_operator(key.public)}",
        f"method finetune: {rounds} rounds with others, 5 private ones, which send nothing",
        "3 steps of 5 directions, different for every client, on 32 examples",
        "epsilon 0.5",
        f"in all at most {config.terms.scalars} scalars about examples",
        f"{rounds * 3 * 5} projected gradients",
        f"{config.terms.evaluated_columns} losses in evaluations",
        "validation and test examples: before the first and after the last round, and every 2 rou",
    ):
        assert words in said


def test_every_changed_byte_is_refused(key: SigningKey) -> None:
    data = signed(CONFIG, key).encode()
    start = data.index(b"\n") + 1
    for at in range(start, len(data), 7):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(ScenarioError):
            SignedScenario.decode(bytes(changed))


def test_another_key_or_signature_is_refused(key: SigningKey, tmp_path: Path) -> None:
    data = signed(CONFIG, key).encode()
    other = operator_key(tmp_path, "other.key")
    strange = signed(config_of(CONFIG.flat(), batch=1), other)

    def claim(values: dict[str, Any]) -> None:
        values["operator"] = key.public.decode()

    with pytest.raises(ScenarioError, match="the signature is wrong"):
        SignedScenario.decode(with_line(strange.encode(), 0, claim))
    with pytest.raises(ScenarioError, match="the signature is wrong"):
        SignedScenario.decode(with_line(data, 1, lambda values: values.update(batch=1)))
    with pytest.raises(ScenarioError, match="the signature is wrong"):
        SignedScenario.decode(
            with_line(
                data, 2, lambda values: values.update({"adapter.basis": "sha256:" + "0" * 64})
            )
        )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n\n",
        b"{}\n{}\n{}\n",
        b"[]\n[]\n[]\n",
        b"[" * 20_000 + b"\n{}\n{}\n",
        b'{"samara scenario": 2}\n{}\n{}\n',
        b'{"operator": "", "samara scenario": 1, "signature": ""}\n{}\n{}\n',
        b'{"operator": "x", "samara scenario": 1, "signature": "zz"}\n{}\n{}\n',
        b'{"operator": 3, "samara scenario": 1, "signature": ""}\n{}\n{}\n',
        b'{"operator": "\\ud800", "samara scenario": 1, "signature": ""}\n{}\n{}\n',
        b"\xff\xfe{\x00}\x00\n{}\n{}\n",
        b'{"a": NaN}\n{}\n{}\n',
        b'{"a": ' + b"9" * 5000 + b"}\n{}\n{}\n",
        bytes(range(256)) * 8,
    ],
)
def test_what_is_no_signed_scenario_is_refused(data: bytes) -> None:
    with pytest.raises(ScenarioError, match="not a signed scenario"):
        SignedScenario.decode(data)


def test_other_forms_of_a_signed_file_are_refused(key: SigningKey) -> None:
    data = signed(CONFIG, key).encode()
    for other in (data + b"\n", data[:-1], data.replace(b": ", b":", 1), b" " + data, data * 2):
        with pytest.raises(ScenarioError):
            SignedScenario.decode(other)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("queries", -1),
        ("queries", 2**16),
        ("batch", True),
        ("rounds", 1.5),
        ("epsilon", "0.1"),
        ("learning-rate", -1.0),
        ("seed-policy", "mine"),
        ("cohort.clusters", 10**9),
        ("seed", 2**63),
    ],
)
def test_settings_that_no_run_has_are_refused_although_they_are_signed(
    setting: str, value: object, key: SigningKey
) -> None:
    settings = config_of(CONFIG.flat(), method="cluster").identity() | {setting: value}
    identity = json.dumps(settings, sort_keys=True).encode()
    with pytest.raises(ScenarioError, match=setting):
        SignedScenario.decode(SignedScenario.sign(identity, {}, key).encode())
    del settings[setting]
    identity = json.dumps(settings, sort_keys=True).encode()
    with pytest.raises(ScenarioError, match=setting):
        SignedScenario.decode(SignedScenario.sign(identity, {}, key).encode())


def test_a_large_file_is_not_read_whole(key: SigningKey, tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as opened:
        opened.truncate(2**40)
    with pytest.raises(
        ScenarioError, match=f"large: this signed scenario is larger than {2**16} bytes"
    ):
        read_scenario(file)
    padded = json.dumps({"padding": "x" * MAX_SCENARIO_BYTES}, sort_keys=True).encode()
    with pytest.raises(ScenarioError, match="larger than"):
        SignedScenario.decode(SignedScenario.sign(padded, {}, key).encode())
    with pytest.raises(ScenarioError, match="none: cannot be read: No such file"):
        read_scenario(tmp_path / "none")


def test_the_first_operator_is_the_only_one(key: SigningKey, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first, renewed, strange = (tmp_path / name for name in ("first", "renewed", "strange"))
    first.write_bytes(signed(CONFIG, key).encode())
    renewed.write_bytes(signed(config_of(CONFIG.flat(), seed=1), key).encode())
    other = operator_key(tmp_path, "other.key")
    strange.write_bytes(signed(CONFIG, other).encode())
    assert ScenarioFolder(home).read_all() is None
    assert describe_scenarios(home) == [
        "no signed scenario: the server decides on settings and instructions"
    ]
    assert "signed by operator" in take_scenario(first, home)[0]
    take_scenario(first, home)
    with pytest.raises(ScenarioError, match=r"is signed by operator .* delete .*scenarios") as said:
        take_scenario(strange, home)
    assert describe_operator(other.public) in str(said.value)
    assert describe_operator(key.public) in str(said.value)
    take_scenario(renewed, home)
    scenarios = ScenarioFolder(home).read_all()
    assert scenarios is not None
    assert sorted(scenario.settings["seed"] for scenario in scenarios) == [0, 1]
    folder = home / "scenarios"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert len(list(folder.iterdir())) == 3


def test_a_damaged_folder_stops_the_client(key: SigningKey, tmp_path: Path) -> None:
    folder = ScenarioFolder(tmp_path)
    scenario = signed(CONFIG, key)
    folder.add(scenario)
    file = tmp_path / "scenarios" / f"{scenario.name}.signed"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ScenarioError, match="not a signed scenario"):
        folder.read_all()
    file.write_bytes(signed(CONFIG, operator_key(tmp_path, "other.key")).encode())
    with pytest.raises(ScenarioError, match="is signed by operator"):
        folder.read_all()
    file.unlink()
    assert folder.read_all() == []
    assert "all requests are refused" in describe_scenarios(tmp_path)[0]
    (tmp_path / "scenarios" / "refused.json").write_text("[")
    assert folder.read_refused() is None


def test_the_preflight_says_who_decides(key: SigningKey, tmp_path: Path) -> None:
    unsigned = check_scenario(tmp_path)
    assert unsigned.outcome is Outcome.WARN
    assert "no scenario is signed: the server decides" in str(unsigned)
    scenario = signed(CONFIG, key)
    ScenarioFolder(tmp_path).add(scenario)
    held = check_scenario(tmp_path)
    assert held.outcome is Outcome.PASS
    assert held.finding == f"1 signed by operator {describe_operator(key.public)}"
    file = tmp_path / "scenarios" / f"{scenario.name}.signed"
    file.write_bytes(b"")
    assert "not a signed scenario" in str(check_scenario(tmp_path))
    file.unlink()
    assert "so this client refuses every request" in str(check_scenario(tmp_path))
    assert check_scenario(tmp_path).outcome is Outcome.FAIL


def test_refused_requests_are_counted(key: SigningKey, tmp_path: Path) -> None:
    folder = ScenarioFolder(tmp_path)
    folder.add(signed(CONFIG, key))
    folder.record_refusal("much")
    folder.record_refusal("x" * 5000)
    refused = folder.read_refused()
    assert refused is not None
    assert (refused.count, len(refused.reason)) == (2, 1000)
    assert "2 requests refused" in describe_scenarios(tmp_path)[-1]


def test_an_operators_key_is_made_once(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "operator.key"
    name = create_operator_key(file)
    assert name == describe_operator(SigningKey(file).public)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    with pytest.raises(SamaraError, match="already exists, and clients may trust this key"):
        create_operator_key(file)
    assert file.read_bytes() == before
    for _ in range(2):  # replaces its own file
        sign_scenario(CONFIG, file, tmp_path / "field.signed")
    with pytest.raises(SamaraError, match="cannot be written"):
        sign_scenario(CONFIG, file, tmp_path / "none" / "out")
    for path, why in ((tmp_path / "missing", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(SamaraError, match=f"the key cannot be read: {why}"):
            sign_scenario(CONFIG, path, tmp_path / "out")


def test_what_a_scenario_may_lack_has_the_settings_defaults() -> None:
    defaults = RunConfig.of({}, "test").flat()
    optional = {key: term.default for key, term in TERMS.items() if term.default is not None}
    assert {key: defaults[key] for key in optional} == optional
    assert TERMS.keys() <= defaults.keys()
