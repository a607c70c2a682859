"""The supervisor of a live run, with a SuperLink that follows a script."""

import json
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from server import app as server_app
from server.live import run_supervisor as module
from server.live.farewell import describe_names
from server.live.keys import ClientKeys
from server.live.server_log import limit_log
from server.live.superlink import RUN_ERROR
from server.live.superlink_process import Node
from server.live.told_clients import TOLD_FILE, ToldClients
from server.store import METRICS_FILE
from shared.config import RunConfig
from shared.errors import SamaraError
from shared.events import EventFollower, append_event
from simulations.engine import InProcessGrid


class Time:
    """A clock that advances by sleeping, and whose time of day can be set."""

    def __init__(self) -> None:
        self.seconds, self.set_by = 0.0, 0.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return 1e9 + self.seconds + self.set_by

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class SuperLink:
    """A SuperLink whose run has the statuses of a script; records the calls."""

    address, folder, log_file = "nowhere", Path("nowhere/flower"), Path("superlink.log")

    def __init__(self, statuses: Iterator[tuple[str, str]], starts: Iterator[bool]) -> None:
        self._statuses, self._starts = statuses, starts
        self.calls: list[str] = []
        self.nodes: dict[int, Node] = {}
        self._is_up = False
        self.certificate = self.loaded_certificate = 1

    def start(self) -> None:
        self.calls.append("start")
        self.loaded_certificate = self.certificate
        self._is_up = True

    def missing_process(self) -> str:
        return "" if self._is_up else "Flower's SuperLink"

    def has_server_app(self) -> bool:
        return True

    def has_new_certificate(self) -> bool:
        return self.certificate != self.loaded_certificate

    def stop(self) -> None:
        self._is_up = False

    def reset(self) -> None:
        self.calls.append("reset")
        self._is_up = False

    def start_run(self, config: RunConfig, bundle: bytes) -> int:
        self.calls.append("start run")
        if not next(self._starts, True):
            raise SamaraError("it does not answer")
        return 1

    def run_status(self, run: int) -> tuple[str, str]:
        return next(self._statuses)

    def list_nodes(self) -> list[Node]:
        return list(self.nodes.values())

    def register(self, public_key: bytes, name: str) -> None:
        self.nodes[len(self.nodes)] = Node(len(self.nodes), public_key, name, False, False)

    def unregister(self, node: int) -> None:
        del self.nodes[node]


class Display:
    """A display that keeps its lines."""

    def __init__(self, has_result: bool = True) -> None:
        self.lines: list[str] = []
        self.finished = has_result

    def show(self, text: str, style: str = "") -> None:
        self.lines.append(text)

    def refresh(self) -> None:
        pass

    def has_result(self) -> bool:
        return self.finished


Serve = Callable[..., bool]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(module, "time", time)
    monkeypatch.setattr(module, "build_bundle", lambda: b"")
    return time


@pytest.fixture
def serve(tmp_path: Path, clock: Time) -> Serve:
    def serve(
        superlink: Any,
        display: Any,
        keys: ClientKeys | None = None,
        renew_certificate: Callable[[], object] | None = None,
    ) -> bool:
        config = RunConfig.of({"out": str(tmp_path)}, "test")
        return module.serve_run(config, superlink, keys, display, renew_certificate)

    return serve


def test_a_log_is_begun_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.live.server_log._MAX_LOG_BYTES", 10_000)
    file = tmp_path / "log.jsonl"
    follower, numbers = EventFollower(file), []
    with file.open("ab") as log:  # as the processes of a run have it open
        for number in range(1000):
            log.write(b'{"number": %d, "padding": "%s"}\n' % (number, b"x" * 500))
            log.flush()
            numbers += [event["number"] for event in follower.read_new()]
            limit_log(file)
            assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 2 * 11_000
    assert numbers == list(range(1000))
    kept = (tmp_path / "log.jsonl.1").read_bytes()
    assert json.loads(kept.splitlines()[-1])["number"] > 900


def nodes_of(keys: ClientKeys, online: Sequence[bool], were: bool = True) -> dict[int, Node]:
    """Nodes of new clients, named by their numbers."""
    for number in range(len(online)):
        keys.create(f"client-{number}")
    return {
        number: Node(number, key.public_key.encode(), key.name, now, were)
        for number, (key, now) in enumerate(zip(keys.read_all(), online, strict=True))
    }


def hearing_at(
    superlink: SuperLink, clock: Time, run: Path, moments: Sequence[float]
) -> Callable[[], list[Node]]:
    """Return `list_nodes` of a SuperLink whose nodes hear of the end at some times."""

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
    assert display.lines == ["the run has ended before; for another one give another --run"]


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
        "the run is finished; telling 2 connected clients",
        "away when the run ended: client-2; the same command serves until they have heard of it",
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
        "the run has ended before; for another one give another --run",
        "client-3 is refused from now on",
        "waiting until client-0, client-1 have heard that it is finished, or for Ctrl-C",
        "client-0: heard that the run is finished",
        "client-1: heard that the run is finished",
        "every client that took part has heard that the run is finished",
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


def test_a_run_with_a_result_is_not_started_again_whatever_flower_says(
    serve: Serve, tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink = SuperLink(iter([("running", "")]), iter([]))

    def has_ended() -> bool:
        (tmp_path / "result.json").touch()
        return False

    monkeypatch.setattr(superlink, "has_server_app", has_ended)
    assert serve(superlink, Display())
    assert superlink.calls == ["start", "start run"]


def test_a_server_app_that_waits_beside_the_result_of_an_earlier_one_is_ended(
    serve: Serve, tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    superlink = SuperLink(iter(5 * [("running", "")]), iter([]))
    monkeypatch.setattr(superlink, "folder", tmp_path / "flower")

    def finishes_beside_it() -> bool:
        if clock.seconds > 5:
            (tmp_path / "result.json").touch()
        return True

    monkeypatch.setattr(superlink, "has_server_app", finishes_beside_it)
    assert serve(superlink, Display())
    assert superlink.calls == ["start", "start run"]
    assert superlink.missing_process()


def test_a_server_does_not_wait_for_ever_for_clients_that_do_not_ask(
    serve: Serve, clock: Time
) -> None:
    superlink = SuperLink(iter([("finished", "")]), iter([]))
    superlink.nodes = {0: Node(0, b"", "asleep", True, True)}
    assert serve(superlink, Display())
    assert 15 <= clock.seconds < 30


def test_flower_is_reset_when_the_clock_is_set(serve: Serve, clock: Time) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        yield "running", ""
        clock.set_by = 3600
        yield "running", ""
        yield "finished", ""

    superlink, display = SuperLink(statuses(), iter([])), Display()
    assert serve(superlink, display)
    assert superlink.calls == ["start", "start run", "reset", "start", "start run"]
    assert "the clock was set by +3600 s; starting again" in display.lines


def test_a_renewed_certificate_is_served_while_the_run_goes_on(serve: Serve, clock: Time) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        yield "running", ""
        clock.seconds += 3600
        yield "running", ""
        yield "finished", ""

    def renew() -> None:
        superlink.certificate += 1

    superlink, display = SuperLink(statuses(), iter([])), Display()
    assert serve(superlink, display, renew_certificate=renew)
    assert superlink.calls == ["start", "start run", "start", "start run"]
    assert "the server's certificate was renewed; starting again" in display.lines


def test_a_certificate_that_cannot_be_renewed_is_shown(serve: Serve, clock: Time) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        clock.seconds += 3600
        yield "running", ""
        yield "finished", ""

    def renew() -> None:
        raise SamaraError("ca.key: cannot be read")

    superlink, display = SuperLink(statuses(), iter([])), Display()
    assert serve(superlink, display, renew_certificate=renew)
    line = "the server's certificate cannot be renewed: ca.key: cannot be read"
    assert display.lines.count(line) == 1
    assert superlink.calls == ["start", "start run"]


def test_a_start_that_fails_is_tried_again(serve: Serve) -> None:
    superlink = SuperLink(iter([("finished", "")]), iter([False, False, True]))
    display = Display()
    assert serve(superlink, display)
    assert superlink.calls == ["start", "start run", "start run", "start run"]
    assert "the run did not start: it does not answer; starting again" in display.lines


def test_a_start_that_fails_again_and_again_ends_the_run(serve: Serve) -> None:
    with pytest.raises(SamaraError, match="it does not answer"):
        serve(SuperLink(iter([]), iter([False] * 9)), Display())


def test_an_error_of_the_run_itself_ends_it(serve: Serve) -> None:
    details = f"ServerApp failed with exception: {RUN_ERROR}the disk is full"
    with pytest.raises(SamaraError, match=r"^the disk is full"):
        serve(SuperLink(iter([("finished", details)]), iter([])), Display(has_result=False))


UNEXPECTED = "finished", "ServerApp failed with exception: 'ab12'"


def test_an_unexpected_exception_restarts_the_server_app_with_its_reason(
    serve: Serve, clock: Time
) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        for _ in range(3):
            yield UNEXPECTED
        display.finished = True
        yield "finished", ""

    display = Display(has_result=False)
    superlink = SuperLink(statuses(), iter([]))
    assert serve(superlink, display)
    assert superlink.calls.count("start run") == 4
    line = "the ServerApp failed: 'ab12'; see superlink.log; starting again"
    assert display.lines.count(line) == 3


@pytest.mark.parametrize("progresses", [True, False])
def test_failures_end_the_run_only_without_a_round_between_them(
    serve: Serve, tmp_path: Path, progresses: bool
) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        for _ in range(9):
            if progresses:
                append_event(tmp_path / METRICS_FILE, {"event": "round"})
            yield UNEXPECTED
        display.finished = True
        yield "finished", ""

    display = Display(has_result=False)
    superlink = SuperLink(statuses(), iter([]))
    if progresses:
        assert serve(superlink, display)
        assert superlink.calls.count("start run") == 10
    else:
        with pytest.raises(SamaraError, match=r"'ab12'.*; it failed 5 times in a row"):
            serve(superlink, display)


def test_the_server_app_marks_its_own_errors_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised: Exception = SamaraError("the ledger is damaged")

    def serve(*arguments: Any, **options: Any) -> None:
        raise raised

    monkeypatch.setattr(server_app, "serve", serve)
    context = Context(1, 1, {}, RecordDict(), {"out": str(tmp_path)})
    with pytest.raises(SamaraError, match=f"^{RUN_ERROR}the ledger is damaged"):
        server_app.main(InProcessGrid(ClientApp(), 1, {}), context)
    raised = KeyError("ab12")
    with pytest.raises(KeyError):
        server_app.main(InProcessGrid(ClientApp(), 1, {}), context)
    assert "the ServerApp failed: KeyError: 'ab12'" in caplog.text


def test_a_key_that_is_revoked_while_the_run_is_started_is_refused(
    serve: Serve, tmp_path: Path
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    keys.create("kitchen")
    superlink, display = SuperLink(iter([("running", ""), ("finished", "")]), iter([])), Display()
    start_run = superlink.start_run

    def revoke_and_start(config: RunConfig, bundle: bytes) -> int:
        keys.revoke("kitchen")
        return start_run(config, bundle)

    superlink.start_run = revoke_and_start  # type: ignore[method-assign]
    assert serve(superlink, display, keys)
    assert display.lines[1:] == ["kitchen may join", "kitchen is refused from now on"]


def test_a_damaged_key_file_refuses_its_key_and_not_the_server(
    serve: Serve, tmp_path: Path
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    keys.create("garage")
    keys.create("kitchen")
    (tmp_path / "keys" / "garage.json").write_text("{")
    superlink, display = SuperLink(iter([("finished", "")]), iter([])), Display()
    assert serve(superlink, display, keys)
    assert "garage.json: damaged: " in display.lines[1]
    assert "kitchen may join" in display.lines


def test_a_run_that_another_process_serves_is_refused_until_that_dies(
    serve: Serve, tmp_path: Path
) -> None:
    code = (
        "import sys, time; from filelock import FileLock; "
        "lock = FileLock(sys.argv[1]).acquire(); print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "server.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(SamaraError, match="another `samara server up` is serving this run"):
            serve(SuperLink(iter([("finished", "")]), iter([])), Display())
        process.kill()
    assert serve(SuperLink(iter([("finished", "")]), iter([])), Display())
