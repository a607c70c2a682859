"""The supervisor of a live run after the end of the run: it informs clients and shows names."""

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from superlinks import Display, Serve, SuperLink, Time, server_of, set_clock

from samara.server.live.farewell import describe_names
from samara.server.live.keys import ClientKeys
from samara.server.live.superlink_process import Node
from samara.server.live.told_clients import TOLD_FILE, ToldClients
from samara.shared.errors import SamaraError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return set_clock(monkeypatch)


@pytest.fixture
def serve(tmp_path: Path, clock: Time) -> Serve:
    return server_of(tmp_path)


def nodes_of(keys: ClientKeys, online: Sequence[bool], were: bool = True) -> dict[int, Node]:
    """Return the nodes of new clients, named by numbers."""
    for number in range(len(online)):
        keys.create(f"client-{number}")
    return {
        number: Node(number, key.public_key.encode(), key.name, now, were)
        for number, (key, now) in enumerate(zip(keys.read_all(), online, strict=True))
    }


def hearing_at(
    superlink: SuperLink, clock: Time, run: Path, moments: Sequence[float]
) -> Callable[[], list[Node]]:
    """Return `list_nodes` of a SuperLink whose nodes learn of the end at given times."""

    def list_nodes() -> list[Node]:
        told = ToldClients(run / TOLD_FILE)
        for node, moment in zip(superlink.nodes.values(), moments, strict=False):
            if clock.seconds >= moment:
                told.add(node.public_key)
        return list(superlink.nodes.values())

    return list_nodes


def test_a_run_without_keys_that_has_ended_waits_for_nobody(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "result.json").touch()
    superlink, display = SuperLink(iter([]), iter([])), Display()
    assert serve(superlink, display)
    assert superlink.calls == []
    assert display.lines == [
        "this run is already finished; to begin another run, give another --run"
    ]


def test_connected_clients_are_told_of_the_end_and_the_others_are_named(
    serve: Serve, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    superlink, display = SuperLink(iter([("finished", "")]), iter([])), Display()
    superlink.nodes = nodes_of(keys, (True, True, False))
    told = ToldClients(tmp_path / TOLD_FILE)
    told.add(superlink.nodes[0].public_key)
    wait = clock.sleep

    def sleep(seconds: float) -> None:
        wait(seconds)
        if clock.seconds > 6:
            told.add(superlink.nodes[1].public_key)

    monkeypatch.setattr(clock, "sleep", sleep)
    assert serve(superlink, display, keys)
    assert display.lines[-2:] == [
        "the run is finished; informing 2 connected clients",
        "not informed of the run's end: client-2; run the same command to wait for these clients",
    ]
    assert 6 < clock.seconds < 10


def test_a_finished_run_is_served_until_the_clients_that_took_part_have_heard(
    serve: Serve, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.json").touch()
    keys = ClientKeys(tmp_path / "keys")
    superlink, display = SuperLink(iter([]), iter([])), Display()
    superlink.nodes = nodes_of(keys, 4 * (False,))
    superlink.nodes[2] = replace(superlink.nodes[2], was_connected=False)
    keys.revoke("client-3")
    moments = (3000.0, 5000.0, math.inf, math.inf)
    hearing = hearing_at(superlink, clock, tmp_path, moments)
    failures = iter([False, False, False, True])

    def list_nodes() -> list[Node]:
        if next(failures, False):
            raise SamaraError("Flower's SuperLink: it does not answer")
        return hearing()

    monkeypatch.setattr(superlink, "list_nodes", list_nodes)
    renewals = list[float]()
    assert serve(superlink, display, keys, lambda: renewals.append(clock.seconds))
    assert superlink.calls == ["start", "start"]  # the second one since it did not answer
    assert [line for line in display.lines if "may join" not in line and "listen" not in line] == [
        "this run is already finished; to begin another run, give another --run",
        "client-3 is refused from now on",
        "waiting to inform client-0, client-1 of the run's end; Ctrl-C stops waiting",
        "informed of the run's end: client-0",
        "informed of the run's end: client-1",
        "all clients that took part are informed of the run's end",
    ]
    assert len(renewals) == 1
    assert clock.seconds == pytest.approx(5000, abs=5)
    started = len(superlink.calls)
    assert serve(superlink, display, keys)  # it knows who was told
    assert len(superlink.calls) == started + 1
    assert clock.seconds == pytest.approx(5000, abs=5)


def test_ctrl_c_ends_the_wait_for_clients_of_a_finished_run(
    serve: Serve, clock: Time, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.json").touch()
    keys = ClientKeys(tmp_path / "keys")
    superlink, display = SuperLink(iter([]), iter([])), Display()
    superlink.nodes = nodes_of(keys, [False])
    monkeypatch.setattr(clock, "sleep", lambda _: signal.raise_signal(signal.SIGINT))
    assert serve(superlink, display, keys)
    assert display.lines[-1] == "stopping"
    assert superlink.missing_process()


def test_many_names_are_cut() -> None:
    assert describe_names(["a", "b"]) == "a, b"
    assert describe_names([str(n) for n in range(1005)]) == "0, 1, 2, 3, 4 and 1,000 more"


def test_a_server_does_not_wait_for_ever_for_clients_that_do_not_ask(
    serve: Serve, clock: Time
) -> None:
    superlink = SuperLink(iter([("finished", "")]), iter([]))
    superlink.nodes = {0: Node(0, b"", "asleep", True, True)}
    assert serve(superlink, Display())
    assert 15 <= clock.seconds < 30
