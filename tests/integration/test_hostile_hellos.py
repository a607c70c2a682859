"""Hellos of a hostile client, which no run must begin with, end with, or be locked by."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from federations import short_run
from flwr.app import Message, MessageType

from benchmarks.faults.toy_client import LAYOUT, MODEL_ID, app
from server.app import serve
from server.store import read_layout
from shared.config import RunConfig
from shared.errors import ConfigError, SamaraError
from shared.frames.hello import Hello
from shared.layout import ADAPTER_GROUP, Layout, Tensor
from shared.ledger.reading import read_ledger
from shared.result import read_result
from shared.wire import RECORD
from simulations.engine import FIRST_CLIENT_NODE, InProcessGrid

CLIENTS = 4
FOREIGN = replace(LAYOUT, a_seed=7)
LONG = replace(LAYOUT, tensors=tuple(Tensor(str(n), 1, 1, ADAPTER_GROUP) for n in range(2**15)))
HUGE = Layout((Tensor("toy", 2**29, 1, ADAPTER_GROUP),), 1, 1.0, 0, "rademacher")
Change = Callable[[Hello], Hello]


def says_layout(layout: Layout) -> Change:
    return lambda hello: replace(hello, layout=layout.to_json())


def says_clients(count: object) -> Change:
    return lambda hello: replace(hello, facts=f'{{"clients": {count}}}')


def says_model(hello: Hello) -> Hello:
    return replace(hello, model_id=b"m" * 32)


ATTACKS: dict[str, Change] = {
    "clients: 10⁹": says_clients(10**9),
    "clients: 99,999": says_clients(99_999),
    "a layout of 2²⁹ numbers": says_layout(HUGE),
    "a layout of 2¹⁵ tensors": says_layout(LONG),
    "a foreign layout": says_layout(FOREIGN),
    "another model": says_model,
}


class HostileGrid(InProcessGrid):
    """A grid on which some clients send other hellos than they should, and others come later."""

    def __init__(
        self, config: RunConfig, changes: dict[int, Change], first: Iterable[int] | None = None
    ) -> None:
        super().__init__(app, CLIENTS, config.flat())
        self._changes = changes
        self._first = None if first is None else {FIRST_CLIENT_NODE + n for n in first}
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(super().get_node_ids())
        self._looks += 1
        return nodes if self._first is None or self._looks > 6 else sorted(self._first)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for reply in super().pull_messages(message_ids):
            change = self._changes.get(reply.metadata.src_node_id - FIRST_CLIENT_NODE)
            if change and reply.metadata.message_type == MessageType.QUERY:
                record = reply.content.config_records[RECORD]
                frame = record["frame"]
                assert isinstance(frame, bytes)
                record["frame"] = change(Hello.decode(frame)).encode()
            yield reply


class InterruptedGrid(InProcessGrid):
    """A grid that fails in the second round, as if the server was killed."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if messages[0].metadata.group_id == "2":
            raise InterruptedError
        return super().push_messages(messages)


def config_of(out: Path, **changes: Any) -> RunConfig:
    return short_run(CLIENTS, out, **changes)


def contributors(run: Path) -> list[list[int]]:
    return [[c.client for c in r.delta.contributors] for r in read_ledger(run / "ledger")]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_hello_is_refused_alone(attack: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, HostileGrid(config, {0: ATTACKS[attack]}))
    assert contributors(run) == [[1, 2, 3]] * 2
    assert read_layout(run).hash == LAYOUT.hash
    assert read_result(run)["clients"].keys() == {"1", "2", "3"}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_client_that_comes_first_decides_nothing(attack: str, tmp_path: Path) -> None:
    config = config_of(tmp_path / "run")
    run = serve(config, HostileGrid(config, {0: ATTACKS[attack]}, first=[0]), patient=True)
    assert contributors(run) == [[1, 2, 3]] * 2


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_folder_holds_outweighs_hellos(attack: str, tmp_path: Path) -> None:
    """A run goes on with its one honest client although three others agree on something else."""
    config = config_of(tmp_path / "run")
    with pytest.raises(InterruptedError):
        serve(config, InterruptedGrid(app, CLIENTS, config.flat()))
    run = serve(config, HostileGrid(config, dict.fromkeys((0, 1, 2), ATTACKS[attack])))
    assert contributors(run) == [[0, 1, 2, 3], [3]]


def test_a_cluster_run_goes_on_in_its_folder_after_a_hostile_hello(tmp_path: Path) -> None:
    settings = {"method": "cluster", "cohort__clustering_rounds": 1, "rounds": 3}
    config = config_of(tmp_path / "run", **settings)
    with pytest.raises(InterruptedError):
        serve(config, InterruptedGrid(app, CLIENTS, config.flat()))
    changes = dict.fromkeys((0, 1, 2), ATTACKS["a foreign layout"])
    serve(config, HostileGrid(config, changes))
    assert read_layout(tmp_path / "run").hash == LAYOUT.hash
    assert read_result(tmp_path / "run")["clients"].keys() == {"3"}


def test_hellos_that_differ_begin_no_run(tmp_path: Path) -> None:
    """Two against two: neither side is more than half, and the folder is not created."""
    config = config_of(tmp_path / "run")
    grid = HostileGrid(config, dict.fromkeys((0, 1), ATTACKS["a foreign layout"]))
    with pytest.raises(SamaraError, match="4 clients have introduced themselves, and no 2 of"):
        serve(config, grid)
    assert not (tmp_path / "run").exists()


def test_the_operators_layout_and_model_outweigh_every_hello(tmp_path: Path) -> None:
    hashes = {"cohort__layout_hash": LAYOUT.hash.hex(), "cohort__model_id": MODEL_ID.hex()}
    for attack in ("a foreign layout", "another model"):
        config = config_of(tmp_path / attack, cohort__quorum=1, **hashes)
        run = serve(config, HostileGrid(config, dict.fromkeys((0, 1, 2), ATTACKS[attack])))
        assert contributors(run) == [[3]] * 2
    for key in ("cohort.layout-hash", "cohort.model-id"):
        with pytest.raises(ConfigError, match=key):
            RunConfig.of({key: "ab12"}, "test")


def test_the_size_of_a_layout_is_bounded_by_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a refused layout's size is allocated, even if all clients agree on it."""
    monkeypatch.setattr("shared.ledger.ledger.zero_state", pytest.fail)
    config = config_of(tmp_path / "run")
    grid = HostileGrid(config, dict.fromkeys(range(CLIENTS), ATTACKS["a layout of 2²⁹ numbers"]))
    with pytest.raises(SamaraError, match=r"536870912 trained numbers and cohort.most-elements"):
        serve(config, grid)
    assert not (tmp_path / "run").exists()
    config = config_of(tmp_path / "small", cohort__most_elements=LAYOUT.size - 1)
    with pytest.raises(SamaraError, match=r"cohort.most-elements allows 1999"):
        serve(config, HostileGrid(config, {}))
