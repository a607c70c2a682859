"""Registered and installed code is found by name, part of the run's identity, or refused."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import ROOT

import samara
from samara.client.estimators.prge import prge_estimator
from samara.server.rounds.rule import Contribution, Rule
from samara.shared import extensions
from samara.shared.errors import ConfigError, DataError, TaskError
from samara.shared.extensions import Kind, check_extensions, extension, is_extension, stored_name
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
Module = Callable[[Path], ModuleType]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget a test's registrations after the test."""
    monkeypatch.setattr(extensions, "_registered", {})


@pytest.fixture
def small(settings: dict[str, Any]) -> dict[str, Any]:
    return settings | {"rounds": 1, "evaluate.limit": 6, "steps": 1}


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = imported(file).main(rounds=1, clients=2)
    if isinstance(result, samara.Comparison):
        assert any(
            is_extension(str(value))
            for variant in result.runs.variants
            for value in variant.first.config.values()
        )
    else:
        assert set(result) == {"plain", "short"}


def test_there_is_an_example_of_every_kind() -> None:
    kinds = {file.stem.split("_")[0] for file in EXAMPLES}
    assert kinds == set(Kind.__args__)


def test_the_hash_is_that_of_the_source(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    hashes = []
    for text in ("return [1.0]", "return [0.5]", "return [1.0]"):
        file.write_text(f"def rule(contributions):\n    {text}\n")
        samara.register.aggregation("own", imported(file).rule)
        hashes.append(stored_name("aggregation", "own"))
        extensions.inspect.linecache.clearcache()  # type: ignore[attr-defined]
    assert hashes[0] == hashes[2] != hashes[1]


def test_what_a_closure_holds_is_part_of_the_hash() -> None:
    def power(exponent: object) -> Any:
        def rule(contributions: Any) -> Any:
            return exponent

        return rule

    hashes = set()
    for exponent in (1, 2):
        samara.register.aggregation("own", power(exponent))
        hashes.add(stored_name("aggregation", "own"))
    assert len(hashes) == 2
    with pytest.raises(ConfigError, match="identify it with version="):
        samara.register.aggregation("own", power(np.ones(3)))
    samara.register.aggregation("own", power(np.ones(3)), version="3 ones")
    with pytest.raises(ConfigError, match="use lower-case letters"):
        samara.register.aggregation("own@1", power(1))


def test_other_code_is_another_run() -> None:
    samara.register.objective("own", lambda scores, labels: 1, version="1")
    first = RunConfig.of({"objective": "own"}, "test")
    samara.register.objective("own", lambda scores, labels: 1, version="2")
    second = RunConfig.of({"objective": "own"}, "test")
    assert first.identity()["objective"] != second.identity()["objective"]
    assert "objective" not in RunConfig.of({}, "test").identity()
    assert RunConfig.of(first.flat(), "stored") == first


@pytest.mark.parametrize(
    ("key", "kind"),
    [(key, kind) for key, kind in extensions._SETTINGS.items() if key != "task"],
)
def test_a_stored_name_is_kept_and_refused_where_code_is_missing(key: str, kind: Kind) -> None:
    value = "foreign@0123456789ab"
    config = RunConfig.of({key: value, "adapter.label-bias": True}, "from a server")
    assert config.flat()[key] == value
    with pytest.raises(ConfigError, match=f"{kind} 'foreign': is not on this machine"):
        check_extensions(config.flat())
    extensions.register(kind, "foreign", None, version="1")
    with pytest.raises(ConfigError, match="and the run was begun with 0123456789ab"):
        extension(kind, value)
    with pytest.raises(ConfigError, match=rf"{key}: Input should be .* or 'foreign'"):
        RunConfig.of({key: "foreigner"}, "test")


def test_a_client_without_the_code_refuses_the_run_by_name(
    small: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    samara.register.objective("own", lambda scores, labels: 1, version="1")
    config = RunConfig.of(small | {"objective": "own", "rounds": 1}, "test")
    # The server does not look at the clients' code; the clients are those of this process.
    monkeypatch.setattr("samara.simulations.simulate.check_extensions", lambda flat: None)
    extensions._registered.clear()
    with pytest.raises(samara.SamaraError):
        samara.simulate(config)
    assert "objective 'own': is not on this machine" in caplog.text


def test_a_simulation_says_at_once_what_is_missing(small: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="aggregation 'own': is not on this machine"):
        samara.simulate(small, **{"aggregation.rule": "own@0123456789ab"})


def test_a_registered_mean_is_the_mean(small: dict[str, Any], tmp_path: Path) -> None:
    def mean(contributions: list[Contribution]) -> Any:
        examples = np.array([one.examples for one in contributions])
        assert [one.client for one in contributions] == [0, 1, 2]
        assert all(one.gradients.shape == (1, 2) for one in contributions)
        return examples / examples.sum()

    samara.register.aggregation("own-mean", mean)
    runs = [
        samara.simulate(small, **{"aggregation.rule": rule, "out": tmp_path / rule})
        for rule in ("mean", "own-mean")
    ]
    own, other = (run.global_model().numbers for run in runs)
    assert np.allclose(own, other, rtol=1e-5)
    assert own.any()


@pytest.mark.parametrize("given", [[1.0], [1.0, np.nan], "text"])
def test_wrong_weights_are_refused(given: Any) -> None:
    contributions = [Contribution(client, 1.0, np.ones((1, 2)), 0.5) for client in (1, 0)]
    with pytest.raises((ConfigError, ValueError), match=r"finite weights|could not convert"):
        Rule("own", None, lambda contributions: given).weights(contributions)


def test_weights_are_given_back_in_the_order_of_the_reports() -> None:
    contributions = [Contribution(client, 1.0, np.ones((1, 2)), 0.5) for client in (7, 3)]
    rule = Rule("own", None, lambda own: np.array([float(one.client) for one in own]))
    assert rule.weights(contributions).tolist() == [7.0, 3.0]


def test_a_registered_copy_of_an_estimator_or_objective_gives_the_same_run(
    small: dict[str, Any], tmp_path: Path
) -> None:
    def central(seeds: Any, batch: Any, epsilon: float) -> Any:
        return (yield from prge_estimator(seeds, batch, epsilon))

    samara.register.estimator("own-central", central)
    samara.register.objective("own-entropy", cross_entropy)
    ways: list[dict[str, Any]] = [{}, {"gradients": "own-central"}, {"objective": "own-entropy"}]
    for rate in (0.1, "auto"):  # with an estimated step size, curvature is measured
        digests = {
            samara.simulate(
                small, **way, learning_rate=rate, out=tmp_path / f"{rate}{number}"
            ).result.final_digest
            for number, way in enumerate(ways)
        }
        assert len(digests) == 1


def test_wrong_estimates_are_refused(
    small: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def short(seeds: Any, batch: Any, epsilon: float) -> Any:
        yield samara.register.LossRequest(seeds, epsilon, batch)
        return samara.register.GradientEstimate(np.zeros(1, np.float32), 0.0)

    samara.register.estimator("short", short)
    with pytest.raises(samara.SamaraError):
        samara.simulate(small, gradients="short", rounds=1)
    assert "each of the 2 directions" in caplog.text


def test_a_registered_personalization_is_recorded_and_exported(small: dict[str, Any]) -> None:
    def towards_first(examples: samara.register.Examples) -> samara.register.SoftmaxFit:
        return samara.register.SoftmaxFit(
            np.array([3.0, -3.0]), np.zeros((1, examples.features.shape[1]))
        )

    samara.register.personalization("first", towards_first)
    run = samara.simulate(
        small, method="first", **{"adapter.layers": "readout", "adapter.label-bias": True}
    )
    shared, own = run.global_model(), run.personal_model(2)
    (change,) = own.probabilities("the film was good")
    (before,) = shared.probabilities("the film was good")
    odds = [np.log(each["terrible"] / each["great"]) for each in (change, before)]
    assert odds[0] - odds[1] == pytest.approx(6, abs=1e-3)
    assert "personalized" in set(run.to_frame()["model"])


def test_wrong_fits_are_refused(small: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    samara.register.personalization("wrong", lambda examples: ([1.0], [[1.0]]), version="1")
    run = samara.simulate(small, method="wrong", **{"adapter.label-bias": True})
    assert "must return finite numbers of shapes (2,)" in caplog.text
    assert "personalized" not in set(run.to_frame()["model"])


def test_a_registered_partition_is_checked() -> None:
    examples = [Example(str(i), i % 2, "", "train") for i in range(6)]
    samara.register.partition("turns", lambda rows, n, a, s: np.arange(len(rows)) % n, version="1")
    how = stored_name("partition", "turns")
    assert how is not None
    shares = partition(examples, how, 3, 1.0, 0)
    assert [[example.text for example in share] for share in shares] == [
        ["0", "3"],
        ["1", "4"],
        ["2", "5"],
    ]
    for wrong in ([0], [9] * 6, [0.5] * 6):
        samara.register.partition("wrong", lambda *_, wrong=wrong: wrong, version="1")
        name = stored_name("partition", "wrong")
        assert name is not None
        with pytest.raises(DataError, match="the function must return a client from 0 to 2"):
            partition(examples, name, 3, 1.0, 0)


def test_a_registered_task_is_loaded_by_its_name() -> None:
    task = load_task("sst2").model_copy(update={"text": "Review: {sentence}"})
    samara.register.task("reviews", task)
    assert load_task("reviews") == task
    assert samara.load_task(str(stored_name("task", "reviews"))) == task
    extensions.register("task", "wrong", 3, version="1")
    with pytest.raises(TaskError, match="the registered object is a int, not a task"):
        load_task("wrong")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example package is installed."""
    folder = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source")
    for file in (ROOT / "examples" / "package").iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(folder)]
    subprocess.run([*pip, *options, str(source)], check=True, capture_output=True, timeout=120)
    return folder


@pytest.fixture
def with_package(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(installed))
    extensions._installed.cache_clear()
    extensions._load.cache_clear()
    yield
    extensions._installed.cache_clear()
    extensions._load.cache_clear()
    sys.modules.pop("samara_bounded", None)


def test_an_installed_package_is_known_by_its_entry_point(
    with_package: None, small: dict[str, Any]
) -> None:
    assert extensions.names("objective") == ["bounded"]
    assert "samara_bounded" not in sys.modules
    run = samara.simulate(small, objective="bounded")
    assert str(run.result.config["objective"]).startswith("bounded@")
    assert importlib.metadata.version("samara-bounded") == "1.0"


def test_the_command_knows_an_installed_package(
    installed: Path, small: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "empty.toml").write_text("")
    options = [f"--set={key}={value}" for key, value in (small | {"objective": "bounded"}).items()]
    command = [sys.executable, "-m", "samara", "simulate", "empty.toml", *options]
    for path, status, said in (
        (f"{ROOT}:{installed}", 0, "objective"),
        (str(ROOT), 1, "'summed-cross-entropy' or 'metric' (got 'bounded')"),
    ):
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        if status:
            assert said in done.stderr


def test_a_package_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "broken_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[samara.objective]\nbroken = no_such_module:loss\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions._installed.cache_clear()
    with pytest.raises(ConfigError, match="no_such_module:loss cannot be loaded"):
        RunConfig.of({"objective": "broken"}, "test")
    extensions._installed.cache_clear()


def test_registered_code_is_refused_where_it_cannot_work() -> None:
    samara.register.objective("own", lambda scores, labels: 1, version="1")
    samara.register.estimator("own", lambda *_: None, version="1")
    samara.register.personalization("own", lambda examples: None, version="1")
    devices = '[{"device": "laptop", "share": 1}]'
    for settings, said in (
        ({"objective": "own", "gradients": "exact"}, "exact gradients exist only for"),
        ({"gradients": "own", "fleet.devices": devices}, "have only the built-in estimators"),
        ({"method": "own"}, "set adapter.label-bias to true"),
    ):
        with pytest.raises(ConfigError, match=said):
            RunConfig.of(settings, "test")
