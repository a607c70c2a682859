"""Hellos of a hostile client can neither start a run, nor end it, nor lock it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from federations import short_run
from flwr.app import Message

from benchmarks.faults.hostile_hellos import CLIENTS, HELLOS, HostileGrid
from benchmarks.faults.toy_client import LAYOUT, MODEL_ID, app
from samara.server.app import serve
from samara.server.store import read_layout
from samara.shared.errors import ConfigError, SamaraError
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import read_result
from samara.shared.settings.config import RunConfig
from samara.simulations.engines.in_process import InProcessGrid


class InterruptedGrid(InProcessGrid):
    """A grid that fails in the second round, as if the server were killed."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if messages[0].metadata.group_id == "2":
            raise InterruptedError
        return super().push_messages(messages)


class ReturningGrid(HostileGrid):
    """A grid whose clients send refused hellos, leave, and return with valid hellos."""

    has_answered = False

    def get_node_ids(self) -> Iterable[int]:
        nodes = super().get_node_ids()
        assert self._looks < 60, "the clients are not asked again"
        if self.has_answered and self._changes:
            self._changes = {}
            return []
        return nodes

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            self.has_answered = True
            yield reply


def config_of(out: Path, **changes: Any) -> RunConfig:
    return short_run(CLIENTS, out, **changes)


def contributors(run: Path) -> list[list[int]]:
    return [[c.client for c in r.delta.contributors] for r in read_ledger(run / "ledger")]


@pytest.mark.parametrize("attack", HELLOS)
def test_a_hostile_hello_is_refused_alone(attack: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, HostileGrid(config, {0: HELLOS[attack]}))
    assert contributors(run) == [[1, 2, 3]] * 2
    assert read_layout(run).hash == LAYOUT.hash
    assert read_result(run)["clients"].keys() == {"1", "2", "3"}


@pytest.mark.parametrize("attack", HELLOS)
def test_a_hostile_client_that_comes_first_decides_nothing(attack: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, HostileGrid(config, {0: HELLOS[attack]}, first=[0]), patient=True)
    assert contributors(run) == [[1, 2, 3]] * 2


@pytest.mark.parametrize("attack", HELLOS)
def test_what_the_folder_holds_outweighs_hellos(attack: str, tmp_path: Path) -> None:
    """A run continues with its one honest client although three others agree on other values."""
    config = config_of(tmp_path / "run")
    with pytest.raises(InterruptedError):
        serve(config, InterruptedGrid(app, CLIENTS, config.flat()))
    run = serve(config, HostileGrid(config, dict.fromkeys((0, 1, 2), HELLOS[attack])))
    assert contributors(run) == [[0, 1, 2, 3], [3]]


def test_a_cluster_run_goes_on_in_its_folder_after_a_hostile_hello(tmp_path: Path) -> None:
    settings = {"method": "cluster", "cohort__clustering_rounds": 1, "rounds": 3}
    config = config_of(tmp_path / "run", **settings)
    with pytest.raises(InterruptedError):
        serve(config, InterruptedGrid(app, CLIENTS, config.flat()))
    changes = dict.fromkeys((0, 1, 2), HELLOS["a foreign layout"])
    serve(config, HostileGrid(config, changes))
    assert read_layout(tmp_path / "run").hash == LAYOUT.hash
    assert read_result(tmp_path / "run")["clients"].keys() == {"3"}


def test_hellos_that_differ_begin_no_run(tmp_path: Path) -> None:
    """With two against two, neither side has a majority, and no folder is created."""
    config = config_of(tmp_path / "run")
    grid = HostileGrid(config, dict.fromkeys((0, 1), HELLOS["a foreign layout"]))
    with pytest.raises(SamaraError, match="4 clients have introduced themselves; at least 2 of"):
        serve(config, grid)
    assert not (tmp_path / "run").exists()


def test_the_operators_layout_and_model_outweigh_every_hello(tmp_path: Path) -> None:
    hashes = {"cohort__layout_hash": LAYOUT.hash.hex(), "cohort__model_id": MODEL_ID.hex()}
    for attack in ("a foreign layout", "another model"):
        config = config_of(tmp_path / attack, cohort__quorum=1, **hashes)
        run = serve(config, HostileGrid(config, dict.fromkeys((0, 1, 2), HELLOS[attack])))
        assert contributors(run) == [[3]] * 2
    for key in ("cohort.layout-hash", "cohort.model-id"):
        with pytest.raises(ConfigError, match=key):
            RunConfig.of({key: "ab12"}, "test")


def test_the_size_of_a_layout_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is allocated for a refused layout, even if all clients agree on it."""
    monkeypatch.setattr("samara.shared.protocol.ledger.ledger.zero_state", pytest.fail)
    config = config_of(tmp_path / "run")
    grid = HostileGrid(config, dict.fromkeys(range(CLIENTS), HELLOS["a layout of 2²⁹ numbers"]))
    with pytest.raises(SamaraError, match=r"536870912 trained numbers, more than 33554432"):
        serve(config, grid)
    assert not (tmp_path / "run").exists()
    config = config_of(tmp_path / "small")
    monkeypatch.setattr("samara.server.transport.quorum.MOST_ELEMENTS", LAYOUT.size - 1)
    with pytest.raises(SamaraError, match=r"2000 trained numbers, more than 1999"):
        serve(config, HostileGrid(config, {}))


def test_clients_that_come_back_after_a_refusal_are_asked_again_at_once(tmp_path: Path) -> None:
    """This also holds before the run begins, while it still waits for clients."""
    config = config_of(tmp_path / "run")
    refused = dict.fromkeys(range(CLIENTS), HELLOS["a layout of 2²⁹ numbers"])
    run = serve(config, ReturningGrid(config, refused), patient=True)
    assert contributors(run) == [[0, 1, 2, 3]] * 2
