"""Personal models of a finished run: as a small file, on a text, and compared with each other."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Run
from federations import config_of

from samara.client.training.model_runtime import load_run
from samara.shared.errors import DataError, LedgerError, SamaraError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.results.result import RESULT_FILE
from samara.shared.tasks.label_scores import cross_entropy
from samara.simulations.exports.adapter import FinishedRun, client_of, diff, export, export_ledger
from samara.simulations.exports.quick_look import quick_look
from samara.simulations.report.client_curves import write_curves
from samara.simulations.simulate import simulate

ROUNDS, STEPS, QUERIES = 3, 2, 2


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Callable[[str], Path], data_file: Path
) -> Path:
    settings = {
        "model.path": str(model_folder("causal")),
        "data.path": str(data_file),
        "data.clients": 2,
        "data.partition": "iid",
        "task": "sst2",
        "objective": "cross-entropy",
        "adapter.layers": "top:2",
        "rounds": 2,
        "steps": STEPS,
        "queries": QUERIES,
        "batch": 4,
        "threads": 1,
        "learning-rate": 0.3,
        "personal.rounds": ROUNDS,
        "personal.learning-rate": 0.3,
        "evaluate.every": 1,
        "out": str(tmp_path_factory.mktemp("run") / "run"),
    }
    return simulate(config_of(settings))


@pytest.fixture(scope="module")
def file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("files") / "second.samara"
    size = export_ledger(folder, 1, out)
    assert out.stat().st_size == size <= 4 * ROUNDS * STEPS * QUERIES + 512
    return out


def test_the_file_is_the_personal_model(folder: Path, file: Path) -> None:
    opened = FinishedRun.at(folder)
    state = opened.state_in(file)
    assert state.any()
    np.testing.assert_array_equal(state, opened.personal_state(1))


def test_an_exported_model_replaces_no_file_of_a_users_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for out in (tmp_path, Path("."), Path("/")):
        with pytest.raises(SamaraError, match="this is not an empty folder; name a new folder"):
            export(folder, None, out)
    assert [file.name for file in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_quick_look_gives_what_the_runtime_gives(folder: Path, file: Path) -> None:
    opened = FinishedRun.at(folder)
    runtime, source = load_run(opened.config)
    data = source.share_of(0, 2)
    text, prompts = data.in_split(Split.TRAIN)[0].text, data.tokenized(Split.TRAIN).prompts
    labels, models = quick_look(folder, text, client=1)
    assert labels == ["terrible", "great"]
    assert list(models) == ["base", "global", "personal"]
    assert all(own.sum() == pytest.approx(1) for own in models.values())
    assert not np.allclose(models["personal"], models["global"])
    scores = runtime.scores(opened.global_state() + opened.personal_state(1), prompts)[:1]
    loss = cross_entropy(scores[None], np.array([0]))[0]
    assert -np.log(models["personal"][0]) == pytest.approx(loss, abs=1e-4)
    _, from_file = quick_look(folder, text, personal=file)
    np.testing.assert_array_equal(from_file["personal"], models["personal"])


def test_a_file_of_another_run_or_state_is_refused(
    folder: Path, file: Path, tmp_path: Path
) -> None:
    for key, message in (
        ("run_id", "it belongs to run"),
        ("final_digest", "a global model that is not the final model"),
    ):
        copy = tmp_path / key
        shutil.copytree(folder, copy)
        result = json.loads((copy / "result.json").read_text())
        result[key] = "ab" * (len(result[key]) // 2)
        (copy / "result.json").write_text(json.dumps(result))
        with pytest.raises(LedgerError, match=message):
            FinishedRun.at(copy).state_in(file)
    other = tmp_path / "reviews.csv"
    other.write_text("text,label\n")
    with pytest.raises(LedgerError, match="give a file of `samara adapter export --form ledger`"):
        FinishedRun.at(folder).state_in(other)
    with pytest.raises(LedgerError, match="cannot be read"):
        FinishedRun.at(folder).state_in(tmp_path / "nothing")


def test_a_text_must_be_one(folder: Path) -> None:
    with pytest.raises(DataError, match="the text is empty"):
        quick_look(folder, " ")


def test_two_clients_differ_and_one_does_not_differ_from_itself(folder: Path) -> None:
    *_, own = diff(folder, 1, 1)
    assert (own.distance, own.cosine) == (0, pytest.approx(1))
    *tensors, whole = diff(folder, 0, 1)
    assert whole.one**2 == pytest.approx(sum(row.one**2 for row in tensors))
    expected = whole.one**2 + whole.other**2 - 2 * whole.one * whole.other * whole.cosine
    assert whole.distance**2 == pytest.approx(expected)
    with pytest.raises(LedgerError, match="client 7 does not exist"):
        diff(folder, 0, 7)


def test_commands(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.samara"
    status, printed, errors = run(
        "adapter", "export", folder, "--client", 0, "--form", "ledger", "--out", out
    )
    assert (status, errors) == (0, "")
    assert f"{out.stat().st_size} bytes written" in printed
    status, printed, errors = run("adapter", "apply", folder, "a good film", "--personal", out)
    assert (status, errors) == (0, "")
    assert "personal" in printed
    assert printed.count("%") == 6
    status, printed, errors = run("adapter", "diff", folder, 0, 1)
    assert (status, errors) == (0, "")
    assert "cosine" in printed
    assert printed.splitlines()[-1].startswith("all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "--form", "ledger", "--out", "x"), "name the client with --client"),
        (("apply", "text", "--client", 0, "--personal", "x"), "give only one of"),
        (("apply", "text", "--client", 9), "there is no client '9'; the run has 0, 1"),
    ],
)
def test_mistakes_are_one_message(
    arguments: tuple[object, ...], message: str, run: Run, folder: Path
) -> None:
    status, printed, errors = run("adapter", arguments[0], folder, *arguments[1:])
    assert (status, printed) == (1, "")
    assert message in errors
    assert "Traceback" not in errors


def test_every_client_has_its_curves(folder: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra samara-fl[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # written anew, not twice
        write_curves(folder)
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    assert [event.step for event in accumulator.Scalars("client 1/loss")] == [1, 2]
    validated = accumulator.Scalars("client 0/validation accuracy, global")
    assert [event.step for event in validated] == [0, 1, 2]
    tested = accumulator.Scalars("client 1/test accuracy, global")
    columns = [e.columns for e in FinishedRun.at(folder).result.evaluations if e.split == "test"]
    assert tested[-1].value == pytest.approx(columns[-1]["global"].clients[1].accuracy)
    names = accumulator.Tags()["scalars"]
    assert not any("base rate" in name for name in names)  # one point makes no curve
    assert all(len(accumulator.Scalars(name)) > 1 for name in names)


def test_an_unfinished_run_has_no_models(tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match="has the run ended"):
        diff(tmp_path, 0, 1)


def test_a_ledger_of_another_run_has_no_models(folder: Path, tmp_path: Path) -> None:
    settings = FinishedRun.at(folder).result.config | {"seed": 9, "out": str(tmp_path / "other")}
    other, mixed = simulate(config_of(settings)), shutil.copytree(folder, tmp_path / "mixed")
    shutil.copytree(other / "ledger", mixed / "ledger", dirs_exist_ok=True)
    with pytest.raises(LedgerError, match="rounds are missing or belong to another run"):
        FinishedRun.at(mixed).model()


def test_private_rounds_of_a_live_client_are_looked_for_on_its_device(
    folder: Path, tmp_path: Path
) -> None:
    live = shutil.copytree(folder, tmp_path / "live")
    result = json.loads((live / RESULT_FILE).read_text())
    result["clients"] = {"77": result["clients"]["1"]}
    result["names"] = {"77": "anna"}
    (live / RESULT_FILE).write_text(json.dumps(result))
    message = "the private rounds of anna are only on its device; use `samara client ask`"
    with pytest.raises(LedgerError, match=message):
        export_ledger(live, client_of(live, "anna"), tmp_path / "out")
    with pytest.raises(LedgerError, match="client 1 does not exist: the run has 1 clients"):
        export_ledger(live, 1, tmp_path / "out")
