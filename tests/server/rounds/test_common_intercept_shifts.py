"""The round of intercepts after training with a profiled loss, without private intercepts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from false_reports import HostileApp
from federations import Settings, config_of, loaded
from helpers import instruction_with
from numpy.typing import NDArray
from personalizers import runtime_personalizer

from samara.client.personal import private_rounds
from samara.client.personal.kept_label_bias import LABEL_BIAS_FILE
from samara.client.personal.personalizations import read_personalizations
from samara.client.personal.personalizer import Personalizer
from samara.client.personal.private_fit import NO_PRIOR, CommonPrior
from samara.client.personal.private_rounds import _private_instruction
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.server.app import serve
from samara.server.store import LEDGER_FOLDER
from samara.shared.errors import ConfigError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest, to_float32, zero_state
from samara.shared.protocol.step_size import StepSize
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import client_folder
from samara.shared.tasks.objectives import CROSS_ENTROPY
from samara.shared.tasks.profiled_loss import PROFILED, fitted_shift, profiled_cross_entropy
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.exports.adapter import FinishedRun, export
from samara.simulations.simulate import simulate

OWN: Settings = {
    "method": "global",
    "objective": PROFILED,
    "adapter.label-bias": True,
    "rounds": 2,
    "evaluate.every": 0,
}


def states_of(config: RunConfig) -> list[NDArray[np.int64]]:
    """The states after each round of a run."""
    folder = simulate(config)
    layout = FinishedRun.at(folder).layout
    return [one.state for one in verify_ledger(folder / LEDGER_FOLDER, layout)]


def shifts_under(config: RunConfig, state: NDArray[np.int64]) -> list[tuple[int, list[float]]]:
    """The number of each client's training examples, and the shift fitted to their scores."""
    run, found = load_run(config), []
    for client in range(config.data.clients):
        own = run.data.share_of(client, config.data.clients).tokenized(Split.TRAIN)
        (shift,) = fitted_shift(run.runtime.scores(state, own.prompts)[None], own.labels)
        found.append((len(own.labels), shift.tolist()))
    return found


@pytest.mark.parametrize("method", ["global", "finetune"])
def test_the_last_round_adds_the_mean_shift(
    settings: Settings, tmp_path: Path, method: str
) -> None:
    config = config_of(settings | OWN, method=method, aggregation__rule="mean")
    *_, trained, corrected = states_of(config)
    assert config.terms.intercept_round == config.terms.rounds_of_federation + 1
    opened = FinishedRun.at(Path(config.out))
    counts, shifts = zip(*shifts_under(config, trained), strict=True)
    bias = opened.layout.label_bias
    assert bias is not None
    added = to_float32(corrected - trained)
    np.testing.assert_allclose(added[bias], np.average(shifts, axis=0, weights=counts), atol=1e-5)
    assert not np.delete(added, np.r_[bias]).any()
    assert np.abs(added[bias]).max() > 0.01
    assert opened.result.rounds[-1].reports == config.data.clients
    assert opened.result.evaluations[-1].round == config.terms.intercept_round
    np.testing.assert_allclose(
        export(Path(config.out), None, tmp_path / "adapter")["label bias"],
        to_float32(corrected)[bias],
    )


def test_clients_with_one_label_report_finite_shifts(settings: Settings, tmp_path: Path) -> None:
    rows = [
        {"sentence": f"the film was {word} {number}", "label": user % 2, "user": f"user {user}"}
        for user in range(3)
        for number, word in enumerate(["good", "bad", "long", "short"] * 6)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"data.path": str(file), "data.partition": "user", "aggregation.rule": "mean"}
    config = config_of(settings | OWN | own)
    *_, trained, corrected = states_of(config)
    counts, shifts = zip(*shifts_under(config, trained), strict=True)
    assert [np.sign(shift[1]) for shift in shifts] == [-1, 1, -1]
    assert all(1 < np.abs(shift).max() < 10 for shift in shifts)
    added = to_float32(corrected - trained)[FinishedRun.at(Path(config.out)).layout.label_bias]
    np.testing.assert_allclose(added, np.average(shifts, axis=0, weights=counts), atol=1e-5)


@pytest.mark.parametrize("method", ["global", "finetune"])
def test_a_fleet_adds_the_same_shift(
    settings: Settings, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each device computes its passes alone."""
    monkeypatch.setattr("samara.simulations.fleet.clients.MOST_ROWS", 0)
    fleet = {"fleet.devices": '[{"device": "laptop", "share": 1}]'}
    plain, emulated = (
        RunResult.read(
            simulate(config_of(settings | OWN | own, method=method, out=str(tmp_path / name)))
        )
        for name, own in {"plain": {}, "fleet": fleet}.items()
    )
    assert emulated.final_round == plain.final_round
    assert emulated.final_digest == plain.final_digest
    *_, last = emulated.rounds
    assert last.fleet is not None
    assert len(last.fleet.devices) == last.reports


def test_streamed_blocks_do_not_change_the_shift(settings: Settings, tmp_path: Path) -> None:
    digests = {
        RunResult.read(
            simulate(config_of(settings | OWN, model__stream=stream, out=str(tmp_path / stream)))
        ).final_digest
        for stream in ("off", "host")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    "mode", ["central", "local", pytest.param("distributed", marks=pytest.mark.exhaustive)]
)
def test_noise_covers_the_shifts(settings: Settings, mode: str) -> None:
    """With distributed noise the shifts are masked, and each has a share of the noise."""
    config = config_of(
        settings | OWN,
        privacy__mode=mode,
        privacy__noise_multiplier=0.01,
        privacy__honest_share=1.0,
        privacy__secure_aggregation=mode == "distributed",
        seed_policy="shared",
        aggregation__rule="mean",
        cohort__minimum=3,
    )
    assert config.terms.privacy is not None
    assert config.terms.privacy.rounds == config.terms.rounds_of_federation + 1
    *_, trained, corrected = states_of(config)
    shifts = [shift for _, shift in shifts_under(config, trained)]
    added = to_float32(corrected - trained)[FinishedRun.at(Path(config.out)).layout.label_bias]
    np.testing.assert_allclose(added, np.mean(shifts, axis=0), atol=0.05)
    assert not np.allclose(added, np.mean(shifts, axis=0), atol=1e-6)


def test_masks_without_noise_are_refused(settings: Settings) -> None:
    with pytest.raises(ConfigError, match=r"only the vectors of a privacy\.mode can be masked"):
        config_of(settings | OWN, privacy__secure_aggregation=True)


@pytest.mark.parametrize("rule", ["median-norm", "multi-krum", "centered-clipping"])
def test_a_hostile_shift_is_at_most_as_long_as_an_honest_one(settings: Settings, rule: str) -> None:
    """The hostile client claims a shift of 10⁶, and is one of four."""
    config = config_of(settings | OWN, data__clients=4, aggregation__rule=rule)
    folder = serve(config, InProcessGrid(HostileApp({1}, "g = 10^6"), 4, config.flat()))
    layout = FinishedRun.at(folder).layout
    *_, trained, corrected = (one.state for one in verify_ledger(folder / LEDGER_FOLDER, layout))
    longest = max(
        float(np.linalg.norm(shift))
        for client, (_, shift) in enumerate(shifts_under(config, trained))
        if client != 1
    )
    added = to_float32(corrected - trained)
    assert 0 < np.linalg.norm(added) <= longest + 1e-5


def test_a_run_returns_to_the_round_of_the_lowest_profiled_loss(settings: Settings) -> None:
    config = config_of(settings | OWN, evaluate__best="loss", evaluate__every=1)
    folder = simulate(config)
    result, run = RunResult.read(folder), load_run(config)
    layout = FinishedRun.at(folder).layout
    states = {one.round: one.state for one in verify_ledger(folder / LEDGER_FOLDER, layout)}
    validated = [event for event in result.evaluations if event.split == "validation"]
    assert [event.round for event in validated] == [0, 1, 2, 4]
    for event in validated[1:]:
        for client, figures in event.columns["global"].clients.items():
            own = run.data.share_of(int(client), 3).tokenized(Split.VALIDATION)
            scores = run.runtime.scores(states[event.round], own.prompts)[None]
            assert figures.loss == pytest.approx(profiled_cross_entropy(scores, own.labels)[0])


def test_private_rounds_minimize_the_plain_loss(settings: Settings) -> None:
    """No later round would add the shift that a profiled loss leaves out."""
    terms = config_of(settings | OWN, method="finetune").terms
    layout = load_run(config_of(settings | OWN)).runtime.layout
    size = StepSize(1, 0.001, 0.01, False)
    for one, expected in ((terms, False), (replace(terms, reports_shifts=False), True)):
        asked = _private_instruction(one, 1, layout, zero_state(layout.size), size)
        assert asked.is_profiled is expected
        assert one.instruction(
            *(bytes(8), 1, layout.hash, bytes(32)), learning_rate=0.1, clip=0.0, curvature_every=0
        ).is_profiled


@pytest.mark.parametrize("method", ["finetune", "ditto", "mixture"])
def test_private_parts_from_before_are_that_much_less(settings: Settings, method: str) -> None:
    config = config_of(settings | OWN, method=method, personal__rounds=1, personal__when="always")
    folder = simulate(config)
    layout = FinishedRun.at(folder).layout
    *_, trained, corrected = (s.state for s in verify_ledger(folder / LEDGER_FOLDER, layout))
    common = corrected - trained
    for client in range(config.data.clients):
        own = folder / "clients" / str(client)
        *_, before, last = read_personalizations(own)
        assert (before.global_round, last.global_round) == (2, config.terms.intercept_round)
        states = [one.state for one in verify_ledger(own / "personal.ledger", layout)]
        np.testing.assert_array_equal(states[before.last + 1], states[before.last] - common)
        assert last.first == before.last + 2
        assert last.before == before.after  # the same model


def test_unfinished_private_rounds_end_before_the_shift_is_subtracted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(
        settings | OWN, method="finetune", personal__rounds=3, personal__when="always"
    )
    runtime, source = load_run(config)
    layout, data = runtime.layout, source.share_of(0, 3)
    folder = client_folder(config, bytes(8), 0)
    before = zero_state(layout.size)
    shift = before.copy()
    assert layout.label_bias is not None
    shift[layout.label_bias] = 2**40, -(2**40)

    def note(prior: CommonPrior, number: int, state: NDArray[np.int64]) -> Personalizer:
        runs = folder.parent  # for the label bias to be kept
        personalizer = runtime_personalizer(runtime, data, config, bytes(8), runs, prior)
        assert personalizer.note(number, state, digest(layout.hash, state))
        return personalizer

    with monkeypatch.context() as patch:
        plain, taken = private_rounds.train_for_a_round, [0]

        def stop(*arguments: Any) -> Any:
            taken[0] += 1
            if taken[0] == 2:
                raise KeyboardInterrupt
            return plain(*arguments)

        patch.setattr(private_rounds, "train_for_a_round", stop)
        with pytest.raises(KeyboardInterrupt):
            note(NO_PRIOR, 2, before).take()
    note(CommonPrior(shift), config.terms.intercept_round, before + shift).take()
    found = [(one.first, one.last) for one in read_personalizations(folder)]
    assert found == [(1, 3), (5, 7)]
    states = [one.state for one in verify_ledger(folder / "personal.ledger", layout)]
    np.testing.assert_array_equal(states[4], states[3] - shift)
    kept = json.loads((folder / LABEL_BIAS_FILE).read_text())
    assert kept["values"] == states[-1][layout.label_bias].tolist()


@pytest.mark.parametrize("method", ["local", "partial", "cluster"])
def test_methods_without_one_common_round_are_refused(settings: Settings, method: str) -> None:
    with pytest.raises(ConfigError, match="one common round after the last"):
        config_of(settings | OWN, method=method, personal__rounds=1)


def test_a_steps_loss_is_that_of_its_instruction(settings: Settings) -> None:
    reports = []
    for objective, is_profiled in ((PROFILED, False), (CROSS_ENTROPY, False), (PROFILED, True)):
        run = loaded(settings | OWN, objective=objective, method="global")
        state = zero_state(run.runtime.layout.size)
        layout_hash = run.runtime.layout.hash
        asked = instruction_with(
            layout_hash=layout_hash,
            start_digest=digest(layout_hash, state),
            is_profiled=is_profiled,
        )
        reports.append(take_local_steps(run.runtime, run.data.share_of(0, 3), asked, state))
    own, plain, profiled = (report.gradients for report in reports)
    np.testing.assert_array_equal(own, plain)
    assert not np.allclose(own, profiled)
