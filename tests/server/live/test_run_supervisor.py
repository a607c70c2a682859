"""The supervisor of a live run, with a scripted SuperLink."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp
from superlinks import BUSY, Display, Serve, SuperLink, Time, server_of, set_clock

from samara.server import app as server_app
from samara.server.live.busy import NoAnswerError
from samara.server.live.keys import ClientKeys
from samara.server.live.server_log import limit_log
from samara.server.live.superlink import RUN_ERROR
from samara.server.store import METRICS_FILE
from samara.shared.errors import SamaraError
from samara.shared.settings.config import RunConfig
from samara.shared.storage.events import EventFollower, append_event
from samara.simulations.engines.in_process import InProcessGrid


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return set_clock(monkeypatch)


@pytest.fixture
def serve(tmp_path: Path, clock: Time) -> Serve:
    return server_of(tmp_path)


def test_a_log_is_begun_anew_when_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("samara.server.live.server_log._MAX_LOG_BYTES", 10_000)
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
    superlink = SuperLink(iter(9 * [("running", "")]), iter([]))
    monkeypatch.setattr(superlink, "folder", tmp_path / "flower")

    def finishes_beside_it() -> bool:
        if clock.seconds > 5:
            (tmp_path / "result.json").touch()
        return True

    monkeypatch.setattr(superlink, "has_server_app", finishes_beside_it)
    assert serve(superlink, Display())
    assert superlink.calls == ["start", "start run"]
    assert superlink.missing_process()


def test_the_end_of_a_server_app_is_noticed_at_the_next_poll_after_its_result(
    serve: Serve, tmp_path: Path, clock: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        yield "running", ""
        (tmp_path / "result.json").touch()
        yield "running", ""
        yield "finished", ""

    superlink = SuperLink(statuses(), iter([]))
    monkeypatch.setattr(superlink, "folder", tmp_path / "flower")
    assert serve(superlink, Display())
    assert clock.seconds == 4.5  # checks at 2 and 4 s, and the next poll


def test_a_busy_superlink_is_waited_for_and_not_started_again(serve: Serve, clock: Time) -> None:
    statuses = [*40 * [BUSY], ("running", ""), *40 * [BUSY], ("finished", "")]
    superlink, display = SuperLink(iter(statuses), iter([])), Display()
    assert serve(superlink, display)
    assert superlink.calls == ["start", "start run"]
    assert not any("restarting" in line for line in display.lines)


def test_a_superlink_that_never_answers_is_started_again(serve: Serve, clock: Time) -> None:
    statuses = [*70 * [BUSY], ("finished", "")]
    superlink, display = SuperLink(iter(statuses), iter([])), Display()
    assert serve(superlink, display)
    assert superlink.calls == ["start", "start run", "start run"]
    assert "Flower's SuperLink does not answer; restarting" in display.lines


def test_a_run_that_a_busy_machine_cannot_start_is_not_given_up(serve: Serve, clock: Time) -> None:
    superlink = SuperLink(iter([("finished", "")]), iter(7 * [False]))
    superlink.failure = NoAnswerError("it does not answer in time")
    assert serve(superlink, Display())
    assert superlink.calls == ["start", *5 * ["start run"], "start", *3 * ["start run"]]


def test_flower_is_reset_when_the_clock_is_set(serve: Serve, clock: Time) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        yield "running", ""
        clock.set_by = 3600
        yield "running", ""
        yield "finished", ""

    superlink, display = SuperLink(statuses(), iter([])), Display()
    assert serve(superlink, display)
    assert superlink.calls == ["start", "start run", "reset", "start", "start run"]
    assert "the clock was set by +3600 s; restarting" in display.lines


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
    assert "the server's certificate was renewed; restarting" in display.lines


def test_a_certificate_is_renewed_however_often_the_run_is_started_again(
    serve: Serve, clock: Time
) -> None:
    def statuses() -> Iterator[tuple[str, str]]:
        for _ in range(3):
            clock.seconds += 1500
            yield "finished", ""
        display.finished = True
        yield "finished", ""

    superlink, display, renewals = SuperLink(statuses(), iter([])), Display(False), list[float]()
    assert serve(superlink, display, renew_certificate=lambda: renewals.append(clock.seconds))
    assert superlink.calls == ["start", *4 * ["start run"]]
    assert len(renewals) == 1


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
    assert "the run did not start: it does not answer; restarting" in display.lines


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
    line = "the ServerApp failed: 'ab12'; see superlink.log; restarting"
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
        with pytest.raises(SamaraError, match=r"'ab12'.*; the run failed 5 times in a row"):
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


def test_a_signal_while_the_server_ends_is_ignored(serve: Serve) -> None:
    superlink = SuperLink(iter([("running", ""), ("finished", "")]), iter([]))
    stop = superlink.stop

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        stop()

    superlink.stop = interrupted  # type: ignore[method-assign]
    assert serve(superlink, Display())


def test_many_keys_are_registered_together_and_shown_in_a_line(
    serve: Serve, tmp_path: Path
) -> None:
    keys = ClientKeys(tmp_path / "keys")
    for number in range(25):
        keys.create(f"board-{number:02}")
    superlink, display = SuperLink(iter([("running", ""), ("finished", "")]), iter([])), Display()
    assert serve(superlink, display, keys)
    assert [call for call in superlink.calls if "register" in call] == ["register 25"]
    assert [line for line in display.lines if "may join" in line] == [
        "board-00, board-01, board-02, board-03, board-04 and 20 more may join"
    ]


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
