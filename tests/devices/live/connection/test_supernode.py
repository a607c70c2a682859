"""Flower's SuperNode: its process's reports about a server, and messages that the server loses."""

import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from samara.devices.live.connection.executor import _task_connection
from samara.devices.live.connection.supernode import (
    Reachability,
    outlast_server_errors,
    silence_foreign_lines,
    watch_requests,
)
from samara.devices.live.server_contact import (
    CONTACT_FILE,
    describe_contact,
    note_answer,
    note_end,
    note_rejection,
    note_silence,
)
from samara.shared.flower_compat import (
    PullObjectRequest,
    RunNotRunningException,
    discard_replies_to_lost_messages,
    end_tasks_of_lost_messages,
    http_request_response,
    pass_on_many_messages_at_once,
)

ADDRESS = "127.0.0.1:8000"
SECONDS = 20.0


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "samara.device"]


@pytest.fixture
def flower() -> Iterator[logging.Logger]:
    logger = logging.getLogger("flwr")
    before = list(logger.filters)
    yield logger
    logger.filters[:] = before


def test_a_server_that_does_not_answer_is_named_once_and_again_when_it_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    answers: list[httpx.Response | Exception] = [
        httpx.Response(200),
        httpx.ConnectError("Connection refused"),
        httpx.ReadTimeout(""),
        httpx.Response(503),
        httpx.Response(200),
        httpx.Response(404),
    ]
    shown = list[str]()

    def handle(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        shown.append(describe_contact(tmp_path))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    watch_requests(Reachability(tmp_path))
    with httpx.Client() as client:
        while answers:
            try:
                client.get(f"http://{ADDRESS}/v1/fleet/")
            except httpx.TransportError:
                continue
    assert lines(caplog) == [
        f"the server {ADDRESS} does not answer: Connection refused; this client keeps trying. "
        "The server may have finished its run; ask its operator",
        f"the server {ADDRESS} answers again",
    ]
    assert shown[:2] + shown[5:] == ["", "", ""]
    assert shown[2] == shown[3] == shown[4]
    assert shown[2].startswith(f"the server {ADDRESS} has not answered since 20")
    assert "UTC: Connection refused. The server may have finished its run" in shown[2]


def test_heartbeats_go_on_after_a_server_that_could_not_answer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet: Any = import_module("flwr.proto.fleet_pb2")
    heartbeat: Any = import_module("flwr.proto.heartbeat_pb2")
    went_on, beats = threading.Event(), [500, 502, 200]

    def handle(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        answer, status = fleet.ActivateNodeResponse(node_id=7), 200
        if request.url.path.endswith("send-node-heartbeat"):
            answer, status = heartbeat.SendNodeHeartbeatResponse(success=True), beats.pop(0)
            if not beats:
                went_on.set()
        content = answer.SerializeToString()
        kind = {"content-type": "application/x-protobuf"}
        return httpx.Response(status, content=content, headers=kind, request=request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    heartbeats: Any = import_module("flwr.supercore.heartbeat")
    monkeypatch.setattr(heartbeats, "exponential", lambda **_: itertools.repeat(0.01))
    outlast_server_errors()
    with http_request_response(ADDRESS, True, None, max_retries=0):
        assert went_on.wait(SECONDS)


def test_what_was_noted_of_a_server_stays_until_it_answers_or_another_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note_end(tmp_path, ADDRESS)
    note_silence(tmp_path, ADDRESS, "Connection refused")
    assert describe_contact(tmp_path).startswith(
        f"the run is finished, as the server {ADDRESS} reported on 20"
    )
    note_silence(tmp_path, "other:1", "no route to host")
    assert "the server other:1 has not answered since" in describe_contact(tmp_path)
    for damaged in ("", "[]", "{}", '{"time": "now"}', '{"address": "a", "time": 1e300}'):
        (tmp_path / CONTACT_FILE).write_text(damaged)
        assert describe_contact(tmp_path) == ""
    note_rejection(tmp_path, ADDRESS, "the server turns this client away: its key was revoked")
    note_silence(tmp_path, ADDRESS, "Connection refused")
    assert describe_contact(tmp_path).startswith(f"{ADDRESS}, 20")
    assert describe_contact(tmp_path).endswith("turns this client away: its key was revoked")
    note_answer(tmp_path)
    note_answer(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    note_end(tmp_path / "file", ADDRESS)
    assert "cannot be written: " in caplog.text


def test_a_supernode_that_is_started_again_deletes_what_the_earlier_one_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Reachability(tmp_path).note(ADDRESS, "Connection refused")
    started_again = Reachability(tmp_path)
    started_again.note(ADDRESS, "")
    assert describe_contact(tmp_path) == ""
    assert len(lines(caplog)) == 1


def test_a_server_that_cannot_answer_now_is_named_with_its_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable = httpx.Response(503)
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda *_: unable)
    watch_requests(Reachability(tmp_path))
    with httpx.Client() as client:
        client.get(f"http://{ADDRESS}/v1/fleet/")
    assert f"the server {ADDRESS} does not answer: HTTP status 503" in lines(caplog)[0]


def test_a_second_signal_does_not_keep_a_supernode_from_telling_the_server() -> None:
    supernode = (
        "import os, signal;"
        "from flwr.supernode import start_client_internal as internal;"
        "from samara.shared.flower_compat import leave_in_spite_of_repeated_signals;"
        "leave_in_spite_of_repeated_signals();"
        "internal.register_signal_handlers(event_type=None)\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM); signal.pause()\n"
        "finally:\n    os.kill(os.getpid(), signal.SIGTERM); print('told')"
    )
    ended = subprocess.run([sys.executable, "-c", supernode], stdout=subprocess.PIPE, check=True)
    assert ended.stdout == b"told\n"


def test_flowers_lines_about_tries_are_left_out_and_others_are_not(
    flower: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    silence_foreign_lines()
    said = [
        "EXPERIMENTAL: SuperExec authentication is experimental",
        "Connection attempt failed, retrying in 6.91 seconds",
        "Giving up reconnection after 3.00 seconds and 2 tries.",
        "Failed to send message 8e54: Failed to push object with ID '8e54' for run 3545.",
        "Failed to receive message 299f: its run has ended",
        "[/v1/runtime/pull-object][ApiError:1008] Runtime task-token authentication failed.",
        "SSL/TLS handshake error detected.",
    ]
    records = [flower.makeRecord("flwr", logging.WARNING, "", 0, text, (), None) for text in said]
    kept = [record.getMessage() for record in records if flower.filter(record)]
    assert kept == ["SSL/TLS handshake error detected."]
    assert lines(caplog) == [
        "an answer did not reach the server, which may ask for it again",
        "a request of the server could not be fetched; the server asks again if necessary",
    ]


@pytest.mark.parametrize("lost_at", ["pull_object", "confirm_message_received"])
def test_the_task_of_a_message_whose_run_has_ended_meanwhile_is_ended(
    lost_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    internal: Any = import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(internal, "_pull_and_store_message", internal._pull_and_store_message)
    end_tasks_of_lost_messages()
    metadata = SimpleNamespace(run_id=7, group_id="9", message_type="train", message_id="m")
    state, store = Mock(), Mock()
    state.create_task.return_value, store.preregister.return_value = 5, ["m"]
    ask = {"pull_object": Mock(return_value=b"1"), "confirm_message_received": Mock()}
    ask[lost_at].side_effect = RunNotRunningException
    done = internal._pull_and_store_message(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (SimpleNamespace(metadata=metadata), None),
        get_run=Mock(),
        get_fab=Mock(),
        trusted_entities=None,
        **ask,
    )
    assert done is None
    assert state.finish_task.call_args.args[:1] == (5,)
    assert state.delete_messages.call_args.kwargs == {"message_ids": ["m"]}
    assert store.delete.call_args.args == ("m",)


def test_a_request_of_a_task_that_has_ended_fails_at_once_and_interrupts_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = list[str]()

    def refuse(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        requests.append(request.url.path)
        return httpx.Response(401, request=request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
    monkeypatch.setattr("os.kill", Mock(side_effect=AssertionError))
    monkeypatch.setattr("samara.devices.live.connection.executor.HeartbeatSender", Mock())
    stop = Mock(is_set=lambda: False)
    with _task_connection(ADDRESS, "token", stop) as client, pytest.raises(httpx.HTTPStatusError):
        client.PullObject(PullObjectRequest())
    assert len(requests) == 1


class Replies:
    """A SuperNode's state, whose replies can be taken once."""

    def __init__(self) -> None:
        self.waiting: list[str] = []

    def get_messages_legacy(self, *, is_reply: bool) -> list[str]:
        taken, self.waiting = self.waiting, []
        return taken


def test_a_reply_to_a_lost_message_is_not_sent_in_place_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task may have answered before the server failed to confirm its message."""
    internal = import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(internal, "_pull_and_store_message", lambda state: 7)
    discard_replies_to_lost_messages()
    state = Replies()
    state.waiting = ["reply to a lost message"]
    assert internal._pull_and_store_message(state=state) == 7
    state.waiting += ["reply to the next"]
    assert state.get_messages_legacy(is_reply=True) == ["reply to the next"]


def test_a_gateways_supernode_takes_the_next_message_before_the_last_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    internal = import_module("flwr.supernode.start_client_internal")
    state, offered, sent = Replies(), ["first", "second"], list[list[str]]()

    def pull(*, state: Replies, receive: Any) -> int | None:
        return 7 if receive() else None

    def push(*, state: Any, object_store: str) -> None:
        assert object_store == "store"
        sent.append(list(state.get_messages_legacy(is_reply=True)))

    for name, stand_in in (("_pull_and_store_message", pull), ("_push_messages", push)):
        monkeypatch.setattr(internal, name, stand_in)
    for name in ("time", "pull_objects"):  # put back after the test
        monkeypatch.setattr(internal, name, getattr(internal, name))
    pass_on_many_messages_at_once(0.01)

    def receive() -> Any:
        metadata = SimpleNamespace(message_type="train")
        return (SimpleNamespace(metadata=metadata), offered.pop(0)) if offered else None

    for _ in range(2):  # both are taken, and nothing is to be sent
        assert internal._pull_and_store_message(state=state, receive=receive) == 7
        internal._push_messages(state=state, object_store="store")
    assert (offered, sent) == ([], [])
    state.waiting = ["reply to the second"]
    assert internal._pull_and_store_message(state=state, receive=receive) == 0
    state.waiting = ["reply to the first"]
    internal._push_messages(state=state, object_store="store")
    assert sent == [["reply to the second", "reply to the first"]]
