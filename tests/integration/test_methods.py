"""Every method: what it spends, what it keeps to itself, that its files are its model."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings, config_of, grid_of, wrap_local_steps
from flwr.app import Message, MessageType
from helpers import instruction_with
from numpy.typing import NDArray
from test_command import Run, run

from client.app import app as client_app
from client.personal.methods import (
    ERASURE,
    KEPT_SHARES,
    choose_kept_share,
    composition,
    pull_shrinks,
)
from client.protocol.simulated_client import RUNS
from client.training.client_data import ClientData
from client.training.local_steps import take_local_steps
from client.training.model_runtime import load_run
from server.app import serve
from server.rounds.clusters import cluster_folder
from server.rounds.strategy import ScalarStrategy
from server.store import read_layout, replay_run
from server.transport.clock import SystemClock
from shared.config import RunConfig
from shared.errors import ConfigError, LedgerError, SamaraError
from shared.events import read_events
from shared.frames.instructions import CLUSTERING_TRACK, PERSONAL_TRACK, Split, TrainInstruction
from shared.frames.report import Report
from shared.ledger.reading import read_ledger
from shared.replay import Shrink, digest, replay, to_float32
from shared.result import RunResult, read_result
from shared.tasks.objectives import cross_entropy
from simulations.adapter import FinishedRun, export_ledger
from simulations.comparison.comparison import compare_runs
from simulations.engine import InProcessGrid
from simulations.simulate import simulate

__all__ = ["run"]

PRIVATE = ("local", "finetune", "ditto", "mixture", "partial")


@pytest.fixture
def small(settings: Settings) -> Settings:
    """Two clients of three train; every method can run with it."""
    return settings | {
        "rounds": 2,
        "personal.rounds": 2,
        "personal.learning-rate": 0.1,
        "adapter.label-bias": True,
        "cohort.newcomers": 1,
        "evaluate.every": 1,
    }


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


class Listening(InProcessGrid):
    """Keeps every byte of every message and reply."""

    heard: list[bytes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.heard += [_bytes_of(message) for message in messages]
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.heard += [_bytes_of(reply) for reply in replies]
        return replies


def _bytes_of(message: Message) -> bytes:
    """Of everything in a message; a Samara message has one record of byte strings."""
    assert not message.content.array_records
    assert not message.content.metric_records
    (record,) = message.content.config_records.values()
    values = list(record.values())
    assert all(isinstance(value, bytes) for value in values)
    return b"".join(values)  # type: ignore[arg-type]


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
    grid = grid_of(config, Listening)
    grid.heard = []  # type: ignore[attr-defined]
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
    heard = b"".join(grid.heard)  # type: ignore[attr-defined]
    assert all(scalars in heard for scalars in public)
    assert not any(secret in heard for secret in secrets)


def test_ditto_is_pulled_back_after_every_private_round(small: Settings, tmp_path: Path) -> None:
    folder = simulate(config_of(small, method="ditto", personal__pull=0.2))
    free = simulate(config_of(small, out=str(tmp_path / "free")))
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
    private = composition(config, opened.layout).private
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
    """A projected gradient along a masked direction is that of the masked direction."""
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
    method: str, small: Settings, tmp_path: Path
) -> None:
    config = config_of(small, method=method)
    opened = FinishedRun.at(simulate(config))
    file = tmp_path / "own.samara"
    size = export_ledger(opened.folder, 1, file)
    assert size <= 4 * config.private_rounds * config.steps * config.queries + 512
    np.testing.assert_array_equal(opened.state_in(file), opened.personal_state(1))


def test_private_rounds_go_on_where_they_were(small: Settings, tmp_path: Path) -> None:
    """Asked again, a client answers from its ledger; the server asks for two splits anyway."""
    config = config_of(small, method="mixture")
    folder = simulate(config)
    before = FinishedRun.at(folder).personal_state(0)
    (folder / "result.json").unlink()
    RUNS.clear()
    simulate(config)
    np.testing.assert_array_equal(FinishedRun.at(folder).personal_state(0), before)


def test_local_has_no_rounds_with_others(small: Settings) -> None:
    folder = simulate(config_of(small, method="local"))
    result = read_result(folder)
    assert (result["rounds"], result["final_round"]) == ([], 0)
    assert FinishedRun.at(folder).personal_state(2).any()


def test_a_run_returns_to_its_best_round(small: Settings) -> None:
    """A huge step size ruins what is there: the best round is an early one."""
    config = config_of(small, evaluate__best=True, rounds=4, learning_rate=3.0, steps=1)
    folder = simulate(config)
    result = read_result(folder)
    means = {}
    for event in result["evaluations"]:
        column = event["columns"].get("global")
        if event["split"] == "validation" and column:
            own = column["clients"]
            means[event["round"]] = (own["0"]["accuracy"] + own["1"]["accuracy"]) / 2
    best = max(means, key=lambda number: (means[number], number))
    records = list(read_ledger(folder / "ledger"))
    digests = {record.delta.round: record.end_digest.hex() for record in records}
    if best == 4:
        pytest.fail("the test's settings ruin nothing; choose larger steps")
    assert result["final_round"] == 5
    assert result["rounds"][-1]["back_to"] == best
    assert best == 0 or result["final_digest"] == digests[best]
    assert result["evaluations"][-1]["round"] == 5
    (folder / "result.json").unlink()
    assert read_result(simulate(config))["final_digest"] == result["final_digest"]


def test_a_run_returns_no_farther_than_its_ledger_goes(small: Settings) -> None:
    changes: dict[str, Any] = {"rounds": 9, "learning_rate": 3.0, "steps": 1, "evaluate__every": 1}
    config = config_of(small, evaluate__best=True, ledger__snapshot_every=1, **changes)
    folder = simulate(config)
    result = read_result(folder)
    oldest = next(read_ledger(folder / "ledger")).delta.round - 1
    assert oldest > 1
    *rounds, last = result["rounds"]
    assert last["back_to"] >= oldest
    stands = next(event["digest"] for event in rounds if event["round"] == last["back_to"])
    assert result["final_digest"] == stands


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("nothing", "'nothing' is none of"),
        ("adapter, label bias", "nothing would be left to the federation"),
    ],
)
def test_a_part_must_be_some_of_the_layout(part: str, message: str, small: Settings) -> None:
    config = config_of(small, method="partial", personal__part=part)
    with pytest.raises(ConfigError, match=message):
        composition(config, RUNS.run_for(config).runtime.layout)


@pytest.mark.parametrize(("share", "bits"), [(0.5, 1), (0.3, 2), (0.0625, 4), (1e-30, 62)])
def test_a_pull_is_the_nearest_power_of_two(share: float, bits: int) -> None:
    config = RunConfig.of({"method": "ditto", "personal.pull": share}, "test")
    assert pull_shrinks(config) == (Shrink(bits),)
    assert pull_shrinks(RunConfig()) == ()


def test_nothing_is_left_of_a_state() -> None:
    state: NDArray[np.int64] = np.array([2**62 - 1, -(2**62) + 1, 1, -1, 0])
    assert np.abs(replay(state, ERASURE, "gaussian")).max() <= 1


@pytest.mark.parametrize(
    ("settings_of_method", "message"),
    [
        ({"method": "ditto", "personal.rounds": 0}, "ditto needs private rounds"),
        ({"method": "partial"}, "there is no label bias"),
        (
            {"method": "cluster", "rounds": 1, "personal.rounds": 0},
            "cluster needs more rounds",
        ),
        ({"cohort.newcomers": 8}, "at least one must train"),
    ],
)
def test_a_method_must_have_what_it_needs(settings_of_method: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.of(settings_of_method, "test")


def _swapped(data_file: Path, folder: Path) -> Path:
    """The sentences for six users, of whom every other one means the opposite by a label."""
    rows = [json.loads(line) for line in data_file.read_text().splitlines()]
    for index, row in enumerate(rows):
        row["user"] = f"user{index // 2 % 6}"
        row["label"] ^= index // 2 % 2
    file = folder / "swapped.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def opposed(small: Settings, data_file: Path, tmp_path: Path) -> Settings:
    """Two groups of clients with opposite labels; the last client is a newcomer."""
    return small | {
        "method": "cluster",
        "data.path": str(_swapped(data_file, tmp_path)),
        "data.partition": "user",
        "data.clients": 6,
        "queries": 8,
        "batch": 16,
        "rounds": 10,
        "personal.rounds": 0,
        "cohort.clustering-rounds": 8,
        "threads": 1,
    }


def test_clusters_are_found_by_scalars_and_each_is_a_federation(
    opposed: Settings, run: Run, tmp_path: Path
) -> None:
    config = config_of(opposed)
    folder = simulate(config)
    result = RunResult.read(folder)
    assert result.groups == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}
    layout, states = read_layout(folder), []
    for cluster, members in ((0, [0, 2, 4]), (1, [1, 3])):
        *_, last = replay_run(cluster_folder(folder, cluster))
        states.append(last.state)
        for record in read_ledger(cluster_folder(folder, cluster) / "ledger"):
            assert [c.client for c in record.delta.contributors] == members
    assert [entry.round for entry in result.rounds] == [1, 2]
    assert set(result.rounds[0].clients) == {0, 1, 2, 3, 4}
    digests = b"".join(digest(layout.hash, state) for state in states)
    assert result.final_digest == hashlib.sha256(digests).hexdigest()
    assert set(result.evaluations[-1].columns["global"].clients) == set(range(6))
    opened = FinishedRun.at(folder)
    for client, cluster in result.groups.items():
        np.testing.assert_array_equal(opened.model(client), states[cluster])
    with pytest.raises(SamaraError, match="a model per cluster"):
        opened.model()
    status, printed, errors = run("server", "verify", folder)
    assert (status, errors) == (0, "")
    assert printed.count("every digest reproduced") == 2
    for command in (("server", "inspect", folder), ("server", "status", "--run", folder)):
        status, printed, errors = run(*command)
        assert status == 1
        assert "name one, such as" in errors
    status, printed, errors = run("server", "inspect", folder / "cluster-2")
    assert (status, errors) == (0, "")
    again = simulate(config_of(opposed, out=str(tmp_path / "again")))
    assert read_result(again)["final_digest"] == result.final_digest


def test_a_run_with_clusters_goes_on_where_it_was(opposed: Settings, tmp_path: Path) -> None:
    """One cluster is a round ahead of the other when the server dies."""
    whole = simulate(config_of(opposed, rounds=11, out=str(tmp_path / "whole")))
    cut = config_of(opposed, rounds=11)

    plain, rounds = ScalarStrategy.aggregate_train, []

    def dying(self: ScalarStrategy, *rest: Any) -> Any:
        rounds.append(self)
        if len(rounds) == 4:
            raise KeyboardInterrupt
        return plain(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScalarStrategy, "aggregate_train", dying)
        with pytest.raises(KeyboardInterrupt):
            simulate(cut)
    one, other = RunResult.read(whole), RunResult.read(simulate(cut))
    assert other.final_digest == one.final_digest
    assert [entry.round for entry in other.rounds] == [1, 2, 3]
    assert set(other.rounds[1].clients) == set(range(5))
    for cluster in (0, 1):
        steps = [list(replay_run(cluster_folder(at, cluster))) for at in (whole, Path(cut.out))]
        for a, b in zip(*steps, strict=True):
            np.testing.assert_array_equal(a.state, b.state)


class SkippingClock(SystemClock):
    """Waits for nothing; counts the seconds that would have been waited for."""

    def __init__(self) -> None:
        self.waited = 0.0

    def now(self) -> float:
        return self.waited

    def wait(self, max_seconds: float) -> None:
        self.waited += max_seconds


class Unclustered(InProcessGrid):
    """Delivers no reply of client 1 to the clustering instruction."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        identifiers = list(super().push_messages(messages))
        self.lost = getattr(self, "lost", set())
        for identifier, message in zip(identifiers, messages, strict=True):
            frame = bytes(message.content.config_records["samara"]["frame"])  # type: ignore[arg-type]
            if message.metadata.message_type == MessageType.TRAIN:
                track = TrainInstruction.decode(frame).track
                if track == CLUSTERING_TRACK and message.metadata.dst_node_id == 1001:
                    self.lost.add(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return super().pull_messages([i for i in message_ids if i not in self.lost])


def test_a_client_without_a_cluster_is_waited_for_once(opposed: Settings) -> None:
    config, clock = config_of(opposed, rounds=12), SkippingClock()
    grid = Unclustered(client_app, config.data.clients, config.flat())
    result = RunResult.read(serve(config, grid, clock=clock))
    assert clock.waited == config.cohort.timeout
    assert result.groups == {0: 0, 2: 0, 3: 1, 4: 0, 5: 1}
    assert [sorted(entry.clients) for entry in result.rounds] == [[0, 2, 3, 4]] * 4
    assert len(grid.lost) == 4  # it was asked with the rounds, and rested for one of them


def test_a_cluster_waits_for_no_more_clients_than_it_has(opposed: Settings) -> None:
    config, clock = config_of(opposed, cohort__minimum=4), SkippingClock()
    result = RunResult.read(serve(config, grid_of(config), clock=clock))
    assert clock.waited == 0
    assert [sorted(entry.clients) for entry in result.rounds] == [[0, 1, 2, 3, 4]] * 2
    assert all(not entry.problem for entry in result.rounds)


def test_the_metrics_of_a_run_with_clusters_have_their_return_to_the_best_round(
    opposed: Settings,
) -> None:
    folder = simulate(config_of(opposed, evaluate__best=True, evaluate__every=1))
    last = RunResult.read(folder).rounds[-1]
    rounds = [e for e in read_events(folder / "metrics.jsonl") if e["event"] == "round"]
    assert (rounds[-1]["round"], rounds[-1]["digest"]) == (3, last.digest)
    assert [event["round"] for event in rounds] == [1, 2, 3]


def test_who_comes_later_joins_the_cluster_that_agrees(opposed: Settings) -> None:
    config = config_of(opposed, cohort__newcomers=0)
    simulate(config)
    file = Path(config.out) / "clusters.json"
    groups = json.loads(file.read_text())
    for part in ("clusters", "scalars"):
        del groups[part]["3"]
    file.write_text(json.dumps(groups))
    (Path(config.out) / "result.json").unlink()
    assert RunResult.read(simulate(config)).groups[3] == 1


def test_runs_of_different_methods_fit_one_page(small: Settings, tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="needs the extra samara-fl[report]")
    from simulations.report.html import page_of

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
