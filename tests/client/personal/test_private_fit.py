"""The method readout: a solver fits a private part once; the recorded fit is never repeated."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run
from federations import RecordingGrid, Settings, config_of, grid_of
from helpers import RUN_ID
from numpy.typing import NDArray
from personalizers import runtime_personalizer

from samara.client.personal import private_fit
from samara.client.personal.methods import composition
from samara.client.personal.private_rounds import personal_ledger
from samara.client.personal.softmax_fit import Examples, SoftmaxFit, fit_private_part
from samara.client.training.model_runtime import load_run
from samara.server.app import serve
from samara.shared.errors import ConfigError, TrainingError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import DenseValues, to_float32, zero_state
from samara.shared.results.result import RunResult, read_result
from samara.shared.settings.runs import client_folder
from samara.shared.tasks.contrasts import contrasts
from samara.shared.tasks.label_scores import cross_entropy
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.exports.adapter import FinishedRun, export_ledger
from samara.simulations.exports.quick_look import quick_look
from samara.simulations.simulate import simulate


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Settings of three clients, two of which train."""
    return settings | {
        "method": "readout",
        "rounds": 2,
        "personal.rounds": 0,
        "adapter.label-bias": True,
        "cohort.newcomers": 1,
        "evaluate.every": 1,
    }


def ledger_of(folder: Path, client: int) -> Path:
    return folder / "clients" / str(client) / "personal.ledger"


def test_every_client_gets_a_fit_that_its_file_holds(small: Settings, run: Run) -> None:
    config = config_of(small)
    folder = simulate(config)
    opened = FinishedRun.at(folder)
    (runtime, source), w = load_run(config), opened.global_state()
    assert composition(config.terms, opened.layout).shared is None
    for client in range(3):
        (record,) = read_ledger(ledger_of(folder, client), strict=True)
        (dense,) = record.delta.entries
        assert isinstance(dense, DenseValues)
        private = opened.personal_state(client)
        assert np.flatnonzero(private).tolist() == list(range(len(w) - 2, len(w)))
        np.testing.assert_array_equal(opened.model(client), w + private)
        train = source.share_of(client, 3).tokenized(Split.TRAIN)
        losses = [
            cross_entropy(runtime.scores(state, train.prompts)[None], train.labels)[0]
            for state in (w, w + private)
        ]
        assert losses[1] <= losses[0]
        size = export_ledger(folder, client, folder / "private.samara")
        assert size == 158 + 8 + 8 * 2
        np.testing.assert_array_equal(opened.state_in(folder / "private.samara"), private)
    columns = RunResult.read(folder).evaluations[-1].columns
    assert {"global", "intercept", "personalized"} < set(columns)
    assert set(columns["personalized"].clients) == {0, 1, 2}
    _, from_file = quick_look(folder, "a good film", personal=folder / "private.samara")
    _, from_ledger = quick_look(folder, "a good film", client=2)
    np.testing.assert_array_equal(from_file["personal"], from_ledger["personal"])
    status, printed, errors = run("server", "check", "--replay", folder)
    assert (status, errors) == (0, "")
    assert "personal ledgers of 3 clients: every digest reproduced" in printed


def test_a_readout_adapter_gets_a_private_readout_too(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    weakest = "samara.client.personal.softmax_fit.strongest_within_one_error"
    monkeypatch.setattr(weakest, lambda losses: len(losses) - 1)
    changes = {"adapter.layers": "readout", "adapter.damping": "none", "data.clients": 2}
    config = config_of(small | changes, cohort__newcomers=1)
    folder = simulate(config)
    opened = FinishedRun.at(folder)
    (runtime, source), w = load_run(config), opened.global_state()
    train = source.share_of(0, 2).tokenized(Split.TRAIN)
    layout, phi = opened.layout, runtime.features(train.prompts).astype(np.float64)
    for client, rows in opened.result.passes.items():
        examples = source.share_of(client, 2).tokenized(Split.TRAIN).labels
        assert rows == len(examples)
    passes = runtime.passes
    private = runtime_personalizer(
        runtime, source.share_of(0, 2), config, bytes.fromhex(opened.result.run_id)
    ).recorded_private_state(w)
    assert runtime.passes == passes  # every example went through the model once
    np.testing.assert_array_equal(private, opened.personal_state(0))
    numbers = to_float32(private)
    bias, readout = (
        numbers[part.numbers]
        for group in ("label bias", "readout")
        for part in layout.parts
        if part.group == group
    )
    assert np.all(readout)
    added = runtime.scores(w + private, train.prompts) - runtime.scores(w, train.prompts)
    expected = bias + phi @ readout.reshape(1, -1).T @ contrasts(2)
    np.testing.assert_allclose(added, expected, atol=1e-4)


def test_the_intercept_that_steps_start_from_stays_with_the_client(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets: list[bytes] = []
    plain = private_fit.intercept_for_training

    def listen(*arguments: Any) -> Any:
        private = plain(*arguments)
        fitted = private[np.flatnonzero(private)]
        secrets.extend([fitted.tobytes(), to_float32(fitted).tobytes()])
        return private

    monkeypatch.setattr("samara.client.protocol.client.intercept_for_training", listen)
    config = config_of(small)
    grid = grid_of(config, RecordingGrid)
    grid.traffic = []  # type: ignore[attr-defined]
    folder = serve(config, grid)
    for client in range(3):
        (record,) = read_ledger(ledger_of(folder, client))
        (dense,) = record.delta.entries
        assert isinstance(dense, DenseValues)
        secrets += [dense.values.tobytes(), to_float32(dense.values).tobytes()]
        secrets += [record.end_digest, record.position.head]
    assert len(secrets) == 2 * 2 * 2 + 3 * 4
    sent = b"".join(grid.traffic)  # type: ignore[attr-defined]
    assert not any(secret in sent for secret in secrets)


def test_the_intercept_changes_what_the_steps_see(small: Settings, tmp_path: Path) -> None:
    ends = [
        read_result(simulate(config_of(small, method=method, out=str(tmp_path / method))))
        for method in ("readout", "global")
    ]
    assert ends[0]["final_digest"] != ends[1]["final_digest"]


def count_fits(monkeypatch: pytest.MonkeyPatch) -> list[Examples]:
    """Record every fit of a private part in a list."""
    fits: list[Examples] = []

    def counted(examples: Examples, *rest: Any) -> SoftmaxFit:
        fits.append(examples)
        return fit_private_part(examples, *rest)

    monkeypatch.setattr("samara.client.personal.private_fit.fit_private_part", counted)
    return fits


@pytest.mark.parametrize("moment", ["while it is fitted", "before it is acknowledged", "written"])
def test_what_is_recorded_is_read_and_never_fitted_again(
    moment: str, small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(small)
    runtime, source = load_run(config)
    state, data = zero_state(runtime.layout.size), source.share_of(0, 3)
    ledger = personal_ledger(client_folder(config, RUN_ID, 0))

    def make(w: NDArray[np.int64] = state) -> NDArray[np.int64]:
        return runtime_personalizer(runtime, data, config, RUN_ID).recorded_private_state(w)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    target = {
        "while it is fitted": "samara.client.personal.private_fit.fit_private_part",
        "before it is acknowledged": "samara.shared.protocol.ledger.ledger.Ledger._keep_snapshot",
    }.get(moment, "")
    segment = ledger / "0000000001.seg"
    if moment == "written":  # half of the record is on the disk
        make()
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - 40)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, die)
            with pytest.raises(KeyboardInterrupt):
                make()
    kept = list(read_ledger(ledger))
    assert len(kept) == (moment == "before it is acknowledged")
    fits = count_fits(monkeypatch)
    private = make()
    assert len(fits) == 1 - len(kept)
    moved = state.copy()
    moved[0] += 2**50  # another common model would be fitted otherwise
    np.testing.assert_array_equal(make(moved), private)
    assert len(fits) == 1 - len(kept)
    *_, last = verify_ledger(ledger, runtime.layout)
    np.testing.assert_array_equal(last.state, private)


def test_a_run_that_goes_on_keeps_its_private_parts(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(small)
    folder = simulate(config)
    before = [(ledger_of(folder, c) / "0000000001.seg").read_bytes() for c in range(3)]
    accuracy = RunResult.read(folder).evaluations[-1].columns["personalized"].clients[0].accuracy
    (folder / "result.json").unlink()
    monkeypatch.setattr(
        "samara.client.personal.private_fit._has_private_readout", None
    )  # would fail
    simulate(config)
    after = [(ledger_of(folder, c) / "0000000001.seg").read_bytes() for c in range(3)]
    assert after == before
    last = RunResult.read(folder).evaluations[-1].columns["personalized"].clients[0]
    assert last.accuracy == accuracy


def test_a_score_that_is_not_finite_is_refused_and_nothing_is_recorded(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(small)
    runtime, source = load_run(config)
    data, state = source.share_of(0, 3), zero_state(runtime.layout.size)
    count = len(data.tokenized(Split.TRAIN).labels)
    monkeypatch.setattr(runtime, "scores", lambda *_: np.full((count, 2), np.nan, np.float32))
    with pytest.raises(TrainingError, match="not finite"):
        runtime_personalizer(runtime, data, config, RUN_ID).recorded_private_state(state)
    assert list(read_ledger(personal_ledger(client_folder(config, RUN_ID, 0)))) == []


def test_a_client_with_one_label_has_a_sensible_model(small: Settings, tmp_path: Path) -> None:
    rows = [
        {"sentence": f"the film was {['good', 'bad'][i % 2]}", "label": 1, "user": "one"}
        for i in range(20)
    ]
    rows += [
        {"sentence": f"the meal was {['good', 'bad'][i % 2]}", "label": i % 2, "user": "two"}
        for i in range(20)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"data.path": str(file), "data.partition": "user", "data.clients": 2}
    folder = simulate(config_of(small | changes, cohort__newcomers=0))
    figures = RunResult.read(folder).evaluations[-1].columns["personalized"].clients
    assert figures[0].accuracy == 1
    numbers = to_float32(FinishedRun.at(folder).personal_state(0))
    assert np.all(np.abs(numbers) < 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter.label-bias": False}, "method readout with label bias none"),
        ({"fleet.devices": '[{"device": "laptop", "share": 1}]'}, "method readout with clients"),
    ],
)
def test_a_private_fit_must_have_what_it_needs(
    changes: Settings, message: str, small: Settings
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(small | changes)


def test_runs_of_other_methods_are_compared_with_it(small: Settings, tmp_path: Path) -> None:
    folders = [
        simulate(config_of(small, method=method, out=str(tmp_path / method)))
        for method in ("readout", "global")
    ]
    comparison = compare_runs(folders)
    names = [comparison.name_of(condition) for condition in comparison.runs.displayed()]
    assert names[-2:] == ["readout", "global"]
    alone = compare_runs(folders[:1])
    assert [row.condition.name for row in alone.summaries][-3:] == [
        "global",
        "intercept",
        "personalized",
    ]
    assert {row.against.name for row in alone.tested} >= {"base rate", "global", "intercept"}
