"""Every method: its cost, its private data, and files that reproduce its model."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import RecordingGrid, Settings, Simulated, config_of, grid_of, wrap_local_steps
from helpers import instruction_with
from numpy.typing import NDArray

from samara.client.personal.methods import (
    ERASURE,
    KEPT_SHARES,
    choose_kept_share,
    composition,
    pull_shrinks,
)
from samara.client.protocol.simulated_client import RUNS
from samara.client.training.client_data import ClientData
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.server.app import serve
from samara.shared.errors import ConfigError, LedgerError
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK, Split, TrainInstruction
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.replay import Shrink, replay, to_float32
from samara.shared.results.result import RunResult, read_result
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.label_scores import cross_entropy
from samara.simulations.comparison.comparison import compare_runs
from samara.simulations.exports.adapter import FinishedRun, export_ledger
from samara.simulations.simulate import simulate

PRIVATE = ("local", "finetune", "ditto", "mixture", "partial")


@pytest.mark.parametrize("method", [*PRIVATE, "global", "cluster", "readout"])
def test_every_method_spends_the_same_number_of_forward_passes(
    method: str, small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Counter[tuple[int, bool]] = Counter()

    def count(
        plain: Any, runtime: Any, data: ClientData, instruction: TrainInstruction, *rest: Any
    ) -> Report:
        losses = 2 * instruction.queries
        if instruction.differences == "forward":
            losses = instruction.queries + 1
        spent = instruction.steps * losses * instruction.batch
        rows[data.client, instruction.track == PERSONAL_TRACK] += spent
        report: Report = plain(runtime, data, instruction, *rest)
        return report

    wrap_local_steps(monkeypatch, count)
    config = config_of(small, method=method, cohort__clustering_rounds=1)
    simulate(config)
    a_round = 2 * 2 * 2 * 4
    beside = 2 * a_round if method == "finetune" else 0  # the column local-only
    for client in (0, 1):
        left_over = 2 if method == "cluster" else 0  # of a budget that makes no whole steps
        assert rows[client, False] + rows[client, True] == 4 * a_round + beside - left_over
    assert rows[2, False] == (a_round - 2 if method == "cluster" else 0)  # to find its cluster
    assert rows[2, True] == config.private_rounds * a_round + beside


@pytest.mark.parametrize("method", PRIVATE)
def test_nothing_private_is_sent(
    method: str, small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets: list[bytes] = []
    public: list[bytes] = []

    def listen(
        plain: Any, runtime: Any, data: Any, instruction: TrainInstruction, *rest: Any
    ) -> Report:
        report: Report = plain(runtime, data, instruction, *rest)
        found = secrets if instruction.track == PERSONAL_TRACK else public
        found += [report.gradients.tobytes(), np.float32(report.mean_loss).tobytes()]
        found.append(instruction.root.to_bytes(8, "little"))
        return report

    wrap_local_steps(monkeypatch, listen)
    config = config_of(small, method=method)
    grid = grid_of(config, RecordingGrid)
    grid.traffic = []  # type: ignore[attr-defined]
    folder = serve(config, grid)
    for client in range(3):
        private = FinishedRun.at(folder).personal_state(client)
        secrets += [private.tobytes(), to_float32(private).tobytes()]
        for record in read_ledger(folder / "clients" / str(client) / "personal.ledger"):
            secrets += [record.end_digest, record.position.head]
            secrets += [
                group.scalars.coefficients.astype("<i4").tobytes() for group in record.delta.groups
            ]
    assert len(secrets) >= 3 * (3 + 3) * config.private_rounds
    sent = b"".join(grid.traffic)  # type: ignore[attr-defined]
    assert all(scalars in sent for scalars in public)
    assert not any(secret in sent for secret in secrets)


def test_ditto_is_pulled_back_after_every_private_round(
    small: Settings, simulated: Simulated
) -> None:
    folder = simulated(small, method="ditto", personal__pull=0.2)
    free = simulated(small)
    for record in read_ledger(folder / "clients" / "1" / "personal.ledger"):
        *groups, last = record.delta.entries
        assert last == Shrink(2)
        assert len(groups) == 1
    pulled, plain = (FinishedRun.at(run).personal_state(1) for run in (folder, free))
    assert 0 < np.abs(pulled).sum() < np.abs(plain).sum()


def test_a_mixture_keeps_the_share_that_its_validation_examples_like_best(small: Settings) -> None:
    config = config_of(small, method="mixture", personal__learning_rate=1.0)
    folder = simulate(config)
    opened = FinishedRun.at(folder)
    (runtime, source), w = load_run(config), opened.global_state()
    for client in range(3):
        *steps, last = read_ledger(folder / "clients" / str(client) / "personal.ledger")
        p = np.zeros_like(w)
        for record in steps:
            p = replay(p, record.delta.scalar_groups(), opened.layout.distribution)
        examples = source.share_of(client, 3).tokenized(Split.VALIDATION)
        losses = {}
        for share, entries in KEPT_SHARES.items():
            kept = replay(p, entries, opened.layout.distribution)
            scores = runtime.scores(w + kept, examples.prompts)
            losses[entries] = cross_entropy(scores[None], examples.labels)[0]
            np.testing.assert_allclose(kept, share * p, atol=4)
        assert losses[last.delta.entries] == min(losses.values())  # type: ignore[index]


def test_of_equal_shares_and_without_examples() -> None:
    assert choose_kept_share(lambda share: 1.0) == 0.0
    assert choose_kept_share(lambda share: float("nan")) == 0.5
    assert choose_kept_share(lambda share: (share - 0.8) ** 2) == 0.75


def test_a_partial_model_is_private_here_and_common_there(small: Settings) -> None:
    config = config_of(small, method="partial", personal__learning_rate=1.0)
    opened = FinishedRun.at(simulate(config))
    private = composition(config.terms, opened.layout).private
    assert private is not None
    assert private.sum() == 2
    model, own = opened.model(), opened.personal_state(0)
    assert not model[private].any()
    assert np.any(model[~private])
    np.testing.assert_array_equal(opened.model(0)[~private], model[~private])
    np.testing.assert_array_equal(opened.model(0)[private], own[private])
    assert np.any(own[private])
    for client in RunResult.read(opened.folder).evaluations[-1].columns["personalized"].clients:
        assert client in (0, 1, 2)


def test_only_what_moves_is_tried(settings: Settings) -> None:
    """With a mask, the projected gradients are along the masked directions."""
    runtime, source = RUNS.run_for(config_of(settings))
    layout, data = runtime.layout, source.share_of(0, 3)
    moving = np.zeros(layout.size, np.bool_)
    moving[layout.tensor_slice(layout.tensors[0].name)[0]] = True
    asked = instruction_with(layout_hash=layout.hash, steps=2, queries=2, batch=4)
    state = np.full(layout.size, 2**45)
    report = take_local_steps(runtime, data, asked, state, moving)
    everything = take_local_steps(runtime, data, asked, state, np.ones_like(moving))
    unmasked = take_local_steps(runtime, data, asked, state)
    np.testing.assert_array_equal(everything.gradients, unmasked.gradients)
    assert np.all(report.gradients != everything.gradients)
    still = take_local_steps(runtime, data, asked, state, np.zeros_like(moving))
    assert not still.gradients.any()


@pytest.mark.parametrize("method", ["ditto", "mixture", "partial", "local"])
def test_the_small_file_of_every_method_is_the_private_state(
    method: str, small: Settings, simulated: Simulated, tmp_path: Path
) -> None:
    config = config_of(small, method=method)
    opened = FinishedRun.at(simulated(small, method=method))
    file = tmp_path / "own.samara"
    size = export_ledger(opened.folder, 1, file)
    assert size <= 4 * config.private_rounds * config.steps * config.queries + 512
    np.testing.assert_array_equal(opened.state_in(file), opened.personal_state(1))


def test_private_rounds_go_on_where_they_were(small: Settings, tmp_path: Path) -> None:
    """If the server asks again, a client answers from its ledger.

    The server still asks for two splits.
    """
    config = config_of(small, method="mixture")
    folder = simulate(config)
    before = FinishedRun.at(folder).personal_state(0)
    (folder / "result.json").unlink()
    RUNS.clear()
    simulate(config)
    np.testing.assert_array_equal(FinishedRun.at(folder).personal_state(0), before)


def test_local_has_no_rounds_with_others(small: Settings, simulated: Simulated) -> None:
    folder = simulated(small, method="local")
    result = read_result(folder)
    assert (result["rounds"], result["final_round"]) == ([], 0)
    assert FinishedRun.at(folder).personal_state(2).any()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("nothing", "'nothing' is not a name of a tensor or group"),
        ("adapter, label bias", "the federation would train nothing"),
    ],
)
def test_a_part_must_be_some_of_the_layout(part: str, message: str, small: Settings) -> None:
    config = config_of(small, method="partial", personal__part=part)
    with pytest.raises(ConfigError, match=message):
        composition(config.terms, RUNS.run_for(config).runtime.layout)


@pytest.mark.parametrize(("share", "bits"), [(0.5, 1), (0.3, 2), (0.0625, 4), (1e-30, 62)])
def test_a_pull_is_the_nearest_power_of_two(share: float, bits: int) -> None:
    config = RunConfig.of({"method": "ditto", "personal.pull": share}, "test")
    assert pull_shrinks(config.terms) == (Shrink(bits),)
    assert pull_shrinks(RunConfig().terms) == ()


def test_nothing_is_left_of_a_state() -> None:
    state: NDArray[np.int64] = np.array([2**62 - 1, -(2**62) + 1, 1, -1, 0])
    assert np.abs(replay(state, ERASURE, "gaussian")).max() <= 1


@pytest.mark.parametrize(
    ("settings_of_method", "message"),
    [
        ({"method": "ditto", "personal.rounds": 0}, "ditto needs private rounds"),
        ({"method": "partial", "adapter.layers": "top:1"}, "there is no label bias"),
        ({"method": "partial"}, "a readout is a single tensor"),
        (
            {"method": "cluster", "rounds": 1, "personal.rounds": 0},
            "cluster needs more rounds",
        ),
        ({"cohort.newcomers": 8}, "at least one of 8 clients must train"),
    ],
)
def test_a_method_must_have_what_it_needs(settings_of_method: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.of(settings_of_method, "test")


def test_runs_of_different_methods_fit_one_page(small: Settings, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="needs the extra samara-fl[report]")
    from samara.simulations.report.html import page_of

    methods = ["local", "ditto", "global", "cluster"]
    folders = [
        simulate(
            config_of(
                small | {"cohort.clustering-rounds": 1, "evaluate.best": True},
                method=method,
                out=str(tmp_path / method),
            )
        )
        for method in methods
    ]
    comparison = compare_runs(folders)
    shown = [comparison.name_of(line.condition) for line in comparison.summaries]
    assert shown[-4:] == methods
    assert len(comparison.newcomer_summaries) == len(comparison.summaries)
    page = page_of(comparison)
    assert all(f"{method} against" in page for method in methods)


def test_a_pulled_model_that_diverges_begins_anew(small: Settings) -> None:
    config = config_of(small, method="ditto", personal__rounds=6, personal__learning_rate=30.0)
    folder = simulate(config)
    records = list(read_ledger(folder / "clients" / "0" / "personal.ledger"))
    erasures = [record for record in records if record.delta.entries == ERASURE]
    assert erasures
    assert len(records) == 6
    with pytest.raises(LedgerError, match="export the PEFT form instead"):
        export_ledger(folder, 0, folder / "file")
