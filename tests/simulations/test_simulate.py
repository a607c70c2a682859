"""Whole federations on a tiny model: the unmodified apps on the in-process engine."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, Simulated, config_of, grid_of, ledger_of, wrap_local_steps
from flwr.app import Message, MessageType
from helpers import files_of, instruction_with
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController, threadpool_limits

from samara.client.app import app as client_app
from samara.client.protocol.simulated_client import RUNS
from samara.client.training.local_steps import take_local_steps
from samara.server.app import serve
from samara.server.rounds.aggregation import aggregate
from samara.server.store import read_layout, replay_run
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.directions import Differences, batch_order, directions
from samara.shared.protocol.frames.instructions import SeedPolicy, Split, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import Shrink, digest, rebuild, replay, summed, zero_state
from samara.shared.protocol.round_delta import PoolSeeds, RoundDelta
from samara.shared.results.result import read_result
from samara.shared.tasks.label_scores import cross_entropy
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.simulate import simulate


def test_a_run_leaves_a_ledger_that_replays_to_its_digest(
    settings: Settings, simulated: Simulated
) -> None:
    folder = simulated(settings)
    result = read_result(folder)
    _, *steps = replay_run(folder)
    assert [step.round for step in steps] == [1, 2, 3]
    layout = read_layout(folder)
    assert digest(layout.hash, steps[-1].state).hex() == result["final_digest"]
    assert np.any(steps[-1].state)
    assert [event["round"] for event in result["rounds"]] == [1, 2, 3]
    assert [(e["round"], e["split"]) for e in result["evaluations"]] == [
        (0, "validation"),
        (0, "test"),
        (3, "validation"),
        (3, "test"),
    ]
    zero_shot = result["evaluations"][1]["columns"]["global"]
    assert zero_shot["examples"] == 48
    assert sum(client["examples"] for client in zero_shot["clients"].values()) == 48
    assert result["config"] == config_of(settings, out=str(folder)).flat()
    assert result["rounds"][0]["bytes_up"] == 3 * (32 + 2 * 2 * 4)
    assert read_layout(folder).hash.hex() == result["layout_hash"]


@pytest.mark.parametrize("policy", ["shared", "independent", "pool"])
def test_the_same_settings_give_the_same_ledger(
    policy: str, settings: Settings, simulated: Simulated, tmp_path: Path
) -> None:
    first = simulated(settings, seed_policy=policy)
    second = simulate(config_of(settings, seed_policy=policy, out=str(tmp_path / "second")))
    other = simulate(config_of(settings, seed_policy=policy, seed=1, out=str(tmp_path / "other")))
    assert ledger_of(first) == ledger_of(second) != ledger_of(other)


def test_shared_seeds_make_one_group_and_independent_seeds_one_per_client(
    settings: Settings, simulated: Simulated
) -> None:
    shared = simulated(settings, seed_policy="shared")
    independent = simulated(settings, seed_policy="independent")
    assert [len(r.delta.groups) for r in read_ledger(shared / "ledger")] == [1, 1, 1]
    assert [len(r.delta.groups) for r in read_ledger(independent / "ledger")] == [3, 3, 3]


def test_a_run_with_a_pool_is_rebuilt_from_as_many_directions_as_the_pool_has(
    settings: Settings,
) -> None:
    config = config_of(settings, seed_policy="pool", pool_size=5, rounds=4, steps=3)
    folder = simulate(config)
    layout, rounds = (
        read_layout(folder),
        [step.record for step in replay_run(folder) if step.record],
    )
    assert [len(record.delta.contributors) for record in rounds] == [3, 3, 3, 3]
    for record in rounds:
        (group,) = record.delta.groups
        assert isinstance(group.source, PoolSeeds)
        assert group.source.indices.tolist() == [0, 1, 2, 3, 4]
    result = read_result(folder)
    assert result["rounds"][0]["bytes_up"] == 3 * (34 + 5 * 4)
    entries = [entry for record in rounds for entry in record.delta.scalar_groups()]
    seeds, _ = summed([entry for entry in entries if not isinstance(entry, Shrink)])
    assert len(seeds) == 5
    rebuilt = rebuild(zero_state(layout.size), entries, layout.distribution)
    assert np.any(rebuilt)
    assert digest(layout.hash, rebuilt).hex() == result["final_digest"]


def test_with_a_pool_who_was_away_catches_up(settings: Settings) -> None:
    config = config_of(
        settings,
        seed_policy="pool",
        pool_size=64,
        cohort__fraction=0.3,
        rounds=4,
        personal__rounds=1,
    )
    final = read_result(simulate(config))["evaluations"][-1]
    assert set(final["columns"]["global"]["clients"]) == {"0", "1", "2"}
    assert final["refused"] == {}


def test_a_validation_brings_what_the_next_instruction_would(
    settings: Settings, simulated: Simulated
) -> None:
    sent = []
    for every in (0, 1):
        result = read_result(simulated(settings, evaluate__every=every))
        by_rounds = sum(event["bytes_down"] for event in result["rounds"])
        sent.append((by_rounds, sum(event["catch_up_bytes"] for event in result["evaluations"])))
        assert_no_round_brings_more_than_the_state(result)
    assert sent[1][0] < sent[0][0]
    assert sum(sent[0]) == sum(sent[1])


def assert_no_round_brings_more_than_the_state(result: dict[str, Any]) -> None:
    """Check that a round sends each client at most one catch-up, and instructions."""
    clients, state = len(result["clients"]), 192 + 8 * result["elements"]
    for event in result["rounds"]:
        after = [other for other in result["evaluations"] if other["round"] == event["round"]]
        down = event["bytes_down"] + sum(other["bytes_down"] for other in after)
        assert down <= clients * (state + 160 + 89 * len(after))
    for event in result["evaluations"]:
        assert event["catch_up_bytes"] <= clients * state
    assert result["traffic"]["payload"]["whole"]["down"] == result["bytes_down"]


@pytest.mark.parametrize("layers", ["top:2", "readout"])
def test_the_backend_does_not_change_the_ledger(
    layers: str, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, private rounds and the server's replay are computed by numba, numpy and torch."""
    settings |= {"adapter.layers": layers, "personal.rounds": 1}
    folders = []
    for backend in ("numba", "numpy", "torch"):
        monkeypatch.setenv("SAMARA_REPLAY_BACKEND", backend)
        RUNS.clear()
        folders.append(simulate(config_of(settings, out=str(tmp_path / backend))))
    RUNS.clear()
    first, *others = folders
    personal = Path("clients") / "0" / "personal.ledger"
    for folder in others:
        assert ledger_of(folder) == ledger_of(first)
        assert files_of(folder / personal) == files_of(first / personal)


def test_private_rounds_stay_on_the_client_and_can_be_replayed(settings: Settings) -> None:
    config = config_of(settings, personal__rounds=2, adapter__label_bias=True)
    folder = simulate(config)
    final = read_result(folder)["evaluations"][-1]
    names = ["base rate", "zero-shot", "label bias", "local-only", "global", "personalized"]
    assert list(final["columns"]) == sorted(names)
    for figures in final["columns"].values():
        assert set(figures["clients"]) == {"0", "1", "2"}
    layout = read_layout(folder)
    for client in range(3):
        ledger = folder / "clients" / str(client) / "personal.ledger"
        _, *steps = verify_ledger(ledger, layout)
        for step in steps:
            assert step.record is not None
            assert [c.client for c in step.record.delta.contributors] == [client]
        assert len(steps) == 2
        assert np.any(steps[-1].state)
    without = simulate(config_of(settings, adapter__label_bias=True, out=config.out + "-without"))

    def deltas(run: Path) -> list[bytes]:
        return [record.end_digest for record in read_ledger(run / "ledger")]

    assert deltas(without) == deltas(folder)


def test_a_repeated_instruction_gets_the_stored_report(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(settings, rounds=1)
    grid = grid_of(config)
    asked: list[Message] = []
    plain = grid._deliver

    def deliver(message: Message) -> Message:
        reply = plain(message)
        if message.metadata.message_type == MessageType.TRAIN:
            asked.append(message)
            again = plain(message)
            frames = [r.content.config_records["samara"]["frame"] for r in (reply, again)]
            assert frames[0] == frames[1]
        return reply

    grid._deliver = deliver  # type: ignore[method-assign]
    calls: list[int] = []

    def count(plain: Any, *arguments: Any) -> Report:
        calls.append(1)
        report: Report = plain(*arguments)
        return report

    wrap_local_steps(monkeypatch, count)
    serve(config, grid)
    assert len(asked) == len(calls) == 3


@pytest.mark.parametrize("layers", ["top:2", "readout"])
def test_full_participation_with_shared_seeds_is_one_client_with_the_whole_batch(
    layers: str, settings: Settings, tmp_path: Path
) -> None:
    """The mean of equal shards' projected gradients is that of the whole batch."""
    rows = [
        {"text": f"the film was {word} {mark}", "label": int(word in ("good", "great"))}
        for word in ("good", "great", "bad", "awful")
        for mark in (". a", "! a", ". the", "! the", "a day .", "a walk .")
    ]
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(text)
    common = {"data__path": str(folder), "seed_policy": "shared", "steps": 1, "rounds": 2}
    common |= {"adapter__layers": layers, "aggregation__rule": "mean"}
    many = config_of(settings, **common, data__clients=4, batch=6, out=str(tmp_path / "many"))
    one = config_of(settings, **common, data__clients=1, batch=24, out=str(tmp_path / "one"))
    data = RUNS.run_for(many).data
    assert {len(data.share_of(client, 4).tokenized(Split.TRAIN).labels) for client in range(4)} == {
        6
    }
    states = []
    for config in (many, one):
        *_, last = replay_run(simulate(config))
        states.append(last.state.astype(np.float64))
    difference = np.linalg.norm(states[0] - states[1]) / np.linalg.norm(states[1])
    assert difference < 1e-3


@pytest.mark.parametrize("differences", ["central", "forward"])
def test_projected_gradients_are_differences_of_the_losses_of_the_batch(
    differences: Differences, settings: Settings
) -> None:
    runtime, source = RUNS.run_for(config_of(settings))
    layout, client = runtime.layout, source.share_of(0, 3)
    data = client.tokenized(Split.TRAIN)
    asked = instruction_with(
        steps=1, queries=3, batch=4, epsilon=0.02, differences=differences, layout_hash=layout.hash
    )
    report = take_local_steps(runtime, client, asked, zero_state(layout.size))
    batch = batch_order(asked.root, 0, 0, len(data.labels))[:4]
    z = directions(asked.seeds(0)[0], layout.size, layout.distribution)

    def losses(sign: int) -> NDArray[np.float64]:
        perturbations = Perturbations.from_arrays(
            layout, np.zeros(layout.size, "f4"), z, sign * asked.epsilon
        )
        scores = runtime.forward.scores(perturbations.select(slice(1), slice(None)), examples)
        return cross_entropy(scores, data.labels[batch])

    examples = [data.prompts[row] for row in batch]
    below, width = (losses(-1), 2) if differences == "central" else (losses(0), 1)
    expected = (losses(1) - below) / (width * asked.epsilon)
    np.testing.assert_allclose(report.gradients[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("differences", ["central", "forward"])
def test_a_rate_is_found_by_both_kinds_of_differences(differences: str, settings: Settings) -> None:
    config = config_of(settings, rounds=8, queries=8, learning_rate="auto", differences=differences)
    folder = simulate(config)
    *_, last = replay_run(folder)
    assert np.any(last.state)
    assert digest(read_layout(folder).hash, last.state).hex() == read_result(folder)["final_digest"]


def test_fed_the_same_gradients_many_clients_and_one_write_the_same_scalars(
    settings: Settings,
) -> None:
    layout = RUNS.run_for(config_of(settings)).runtime.layout
    instruction = instruction_with(
        seed_policy=SeedPolicy.SHARED, queries=2, learning_rate=0.3, layout_hash=layout.hash
    )
    gradients = np.array([[0.1, -2.5], [3e-4, 1.7]], np.float32)
    token = token_of(instruction.encode())

    def delta_of(clients: int) -> RoundDelta:
        reports = [Report(token, d, 7, 0.5, gradients) for d in range(clients)]
        return aggregate(instruction, reports, 10_000)

    one, many = delta_of(1), delta_of(7)
    assert [g.encode() for g in one.groups] == [g.encode() for g in many.groups]
    ends = [
        replay(zero_state(layout.size), d.scalar_groups(), layout.distribution) for d in (one, many)
    ]
    np.testing.assert_array_equal(*ends)


def test_a_run_is_named_by_as_many_clients_as_there_are(settings: Settings, tmp_path: Path) -> None:
    results = []
    for clients in (2, 3):
        config = config_of(settings, rounds=1, out=str(tmp_path / str(clients)))
        grid = InProcessGrid(client_app, clients, config.flat())
        results.append(read_result(serve(config, grid)))
    assert [result["config"]["data.clients"] for result in results] == [2, 3]
    assert results[0]["run_id"] != results[1]["run_id"]


def test_data_that_changed_between_two_runs_of_a_process_are_read_again(
    settings: Settings, tmp_path: Path
) -> None:
    rows = Path(settings["data.path"]).read_text().splitlines(keepends=True)
    settings |= {"data.path": str(tmp_path / "rows.jsonl"), "rounds": 1}
    counts = []
    for kept in (240, 120):
        (tmp_path / "rows.jsonl").write_text("".join(rows[:kept]))
        result = read_result(simulate(config_of(settings, out=str(tmp_path / str(kept)))))
        counts.append(sum(client["examples"] for client in result["clients"].values()))
    assert counts[0] == 2 * counts[1]


def test_a_client_computes_with_its_own_number_of_threads_in_numpy_too(settings: Settings) -> None:
    """Otherwise its products would take all cores, which other clients also need."""
    blas = ThreadpoolController().select(user_api="blas")
    assert blas.lib_controllers
    seen = set()

    def look(message_type: str, client: int) -> None:
        seen.update(library.num_threads for library in blas.lib_controllers)

    with threadpool_limits(2, "blas"):
        simulate(config_of(settings, rounds=1, threads=1), look)
        assert {library.num_threads for library in blas.lib_controllers} == {2}
    assert seen == {1}
