"""The method `cluster`: scalars determine clusters, each of which is a separate federation."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Run
from federations import Settings, config_of, grid_of
from flwr.app import Message, MessageType

from samara.client.app import app as client_app
from samara.server.app import serve
from samara.server.rounds.clusters import cluster_folder
from samara.server.rounds.strategy import ScalarStrategy
from samara.server.store import read_layout, replay_run
from samara.server.transport.deadline_grid import SystemClock
from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.instructions import CLUSTERING_TRACK, TrainInstruction
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.replay import digest
from samara.shared.results.result import RunResult, read_result
from samara.shared.storage.events import read_events
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.simulate import simulate


def _swapped(data_file: Path, folder: Path) -> Path:
    """Write the sentences for six users; every second user's labels are swapped."""
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
        "rounds": 6,
        "personal.rounds": 0,
        "cohort.clustering-rounds": 4,
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
    with pytest.raises(SamaraError, match="one model per cluster"):
        opened.model()
    status, printed, errors = run("server", "check", "--replay", folder)
    assert (status, errors) == (0, "")
    assert printed.count("every digest reproduced") == 2
    for command in (
        ("server", "status", "--rounds", folder),
        ("server", "status", "--run", folder),
    ):
        status, printed, errors = run(*command)
        assert status == 1
        assert "name a cluster's folder, such as" in errors
    status, printed, errors = run("server", "status", "--rounds", folder / "cluster-2")
    assert (status, errors) == (0, "")
    again = simulate(config_of(opposed, out=str(tmp_path / "again")))
    assert read_result(again)["final_digest"] == result.final_digest


def test_a_run_with_clusters_goes_on_where_it_was(opposed: Settings, tmp_path: Path) -> None:
    """One cluster is a round ahead of the other when the server is killed."""
    whole = simulate(config_of(opposed, rounds=7, out=str(tmp_path / "whole")))
    cut = config_of(opposed, rounds=7)

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
    """A clock that skips waits, and counts the skipped seconds."""

    def __init__(self) -> None:
        self.waited = 0.0

    def now(self) -> float:
        return self.waited

    def wait(self, max_seconds: float, waited: float = 0.0) -> None:
        self.waited += max_seconds


class Unclustered(InProcessGrid):
    """Drops every reply of client 1 to the clustering instruction."""

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
    config, clock = config_of(opposed, rounds=8), SkippingClock()
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


def test_all_clusters_end_with_the_same_round_where_they_may_return_to_a_lower_loss(
    opposed: Settings,
) -> None:
    folder = simulate(config_of(opposed, evaluate__best="loss", evaluate__every=1))
    ends = [[*replay_run(cluster_folder(folder, cluster))][-1].round for cluster in (0, 1)]
    assert ends == [3, 3]
    assert set(RunResult.read(folder).evaluations[-1].columns["global"].clients) == set(range(6))
