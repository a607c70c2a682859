"""Keys, bundle check and processes of a live client."""

import hashlib
import io
import json
import logging
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import tomli_w
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from live import attempts

from benchmarks.faults.ports import free_address
from samara.client.protocol.resident_trainer import _read_server_config
from samara.devices.live.connection import executor
from samara.devices.live.connection.bundle_check import describe_difference
from samara.devices.live.keys import create_key, read_client_index
from samara.devices.live.processes import (
    SupervisedProcess,
    check_not_revoked,
    describe_exit,
    exclusive_lock,
    is_run_finished,
    restart_delay,
    status_of_rejection,
)
from samara.server.live.bundle import build_bundle
from samara.shared.errors import CodeError, DeviceError, FrameError, RejectedError
from samara.shared.flower_compat import Fab, SendTaskHeartbeatRequest
from samara.shared.network.rejection import RejectionCode, describe_rejection, rejection_in
from samara.shared.protocol.client_index import MAX_CLIENT, client_index_of_key
from samara.shared.protocol.wire import FRAME_VERSION, Kind, kind_of, pack
from samara.shared.settings.config import RunConfig

SECONDS = 20.0


def bundle(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def app(version: object, **samara: object) -> bytes:
    content = {"project": {"version": version}, "tool": {"samara": samara}}
    return tomli_w.dumps(content).encode()


@pytest.mark.parametrize(
    ("shipped", "difference"),
    [
        (app("0.0.9", **{"client-code": "0123456789ab"}), "'0.0.9' with code '0123456789ab', and"),
        (app("0.0.9"), "'0.0.9', and here "),
        (app(3, **{"client-code": [1]}), "'', and here "),
        (app("9" * 100), f"'{'9' * 40}', and here "),
        (b"tool = 3", "'', and here "),
        (b"\xff", "its app cannot be read"),
    ],
)
def test_how_a_server_of_another_version_is_described(shipped: bytes, difference: str) -> None:
    found = describe_difference(bundle({"pyproject.toml": shipped, "client/app.py": b"import os"}))
    assert found.startswith(difference)


def test_the_bundle_of_this_version_does_not_differ_and_rubbish_does() -> None:
    own = build_bundle(RunConfig())
    assert describe_difference(own) == ""
    middle = own.index(b"pyproject.toml") + 200
    for rubbish in (
        *(b"", b"PK\x03\x04 rubbish", own[:-40], bundle({"client/app.py": b""})),
        own[:middle] + bytes(50) + own[middle + 50 :],
    ):
        assert "cannot be read" in describe_difference(rubbish)


def test_other_code_is_logged_once_and_the_installed_app_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = b"raise SystemExit"
    evil = bundle({"pyproject.toml": app("6"), "client/app.py": code, "samara/__init__.py": code})
    fab = Fab(hashlib.sha256(evil).hexdigest(), evil, {})
    metadata = SimpleNamespace(message_type="query", group_id="1")
    message = SimpleNamespace(metadata=metadata, has_error=lambda: False)
    sent: list[Any] = []
    monkeypatch.setattr(executor, "pull_task_input", lambda _: (message, None, None, fab))
    monkeypatch.setattr(executor, "push_message", lambda _, reply, __: sent.append(reply))
    monkeypatch.setattr(executor, "push_task_output", lambda *_, **__: None)
    echo: Any = lambda asked, _: asked  # noqa: E731
    answering = executor.Executor(echo, b"secret")
    for _ in range(2):
        answering._answer(None)  # type: ignore[arg-type]
    assert sent == [message, message]
    assert caplog.text.count("differs from this one: '6', and here") == 1


def test_several_tasks_are_answered_at_once_and_one_that_is_early_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers, answered, stop = ["slow", "quick"], list[str](), threading.Event()
    early, quick = ["quick"], threading.Event()

    class Client:
        def AcquireTask(self, request: Any) -> Any:  # noqa: N802
            token = offers.pop(0) if offers else ""
            return SimpleNamespace(token=token, HasField=lambda field: bool(token))

    @contextmanager
    def connect(address: str, token: str, stop: threading.Event) -> Iterator[str]:
        yield token

    def pull(token: str) -> Any:
        if token in early:
            early.remove(token)
            raise RuntimeError("No messages received from Runtime API")
        metadata = SimpleNamespace(message_type="train", group_id="1")
        message = SimpleNamespace(metadata=metadata, token=token, has_error=lambda: False)
        return message, None, None, Fab("", b"", {})

    def app(message: Any, context: Any) -> Any:
        if message.token == "slow":
            assert quick.wait(SECONDS)
        return message

    def push(token: str, reply: Any, context: Any) -> None:
        answered.append(reply.token)
        (stop if token == "slow" else quick).set()

    monkeypatch.setattr(executor, "_task_connection", connect)
    monkeypatch.setattr(executor, "pull_task_input", pull)
    monkeypatch.setattr(executor, "push_message", push)
    monkeypatch.setattr(executor, "push_task_output", lambda *_, **__: None)
    answering = executor.Executor(app, b"secret", at_once=2)  # type: ignore[arg-type]
    monkeypatch.setattr(answering, "_connect", lambda address: nullcontext(Client()))
    answering.run(lambda: "here", stop)
    assert answered == ["quick", "slow"]
    assert not early


def test_a_frame_or_a_setting_of_another_version_is_refused_by_name() -> None:
    other = bytearray(pack(Kind.HELLO, b"x"))
    other[2] = FRAME_VERSION + 1
    with pytest.raises(FrameError, match=f"frame version {FRAME_VERSION + 1} is not"):
        kind_of(bytes(other))
    settings = RunConfig().flat() | {"cohort.newer": 3}
    with pytest.raises(CodeError, match=r"does not know cohort\.newer; install"):
        _read_server_config(json.dumps(settings))


def test_a_key_identifies_a_client(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    device = read_client_index(tmp_path / "key")
    assert 0 <= device <= MAX_CLIENT
    create_key(tmp_path / "key")
    assert read_client_index(tmp_path / "key") == device
    create_key(tmp_path / "other")
    assert read_client_index(tmp_path / "other") != device
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_server_and_client_derive_the_same_index(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    private, public = generate_key_pairs()
    file = tmp_path / "key"
    file.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    assert read_client_index(file) == client_index_of_key(public_key_to_bytes(public))


def test_a_fixed_key_has_a_fixed_index() -> None:
    pem = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    first = hashlib.sha256(pem).digest()[:4]
    assert client_index_of_key(pem) == int.from_bytes(first, "little") % (2**32 - 1)


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be read"):
        read_client_index(tmp_path / "none")
    (tmp_path / "rubbish").write_text("rubbish")
    with pytest.raises(DeviceError, match="not an OpenSSH private key"):
        read_client_index(tmp_path / "rubbish")


def test_pauses_grow_up_to_a_limit() -> None:
    assert [restart_delay(n) for n in range(7)] == [0, 2, 4, 8, 16, 30, 30]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_process_that_ends_is_restarted_after_a_delay() -> None:
    clock, starts = Clock(), []

    def command() -> list[str]:
        starts.append(clock.now)
        return [sys.executable, "-S", "-c", "raise SystemExit(4)"]

    child = SupervisedProcess("it", command, os.environ, clock, lambda status: "")
    assert child.restart_if_due() == ""
    child.end()
    assert child.exit_status == 4
    assert child.restart_if_due() == "it ended with status 4; it restarts in 2 s"
    clock.now = 1.9
    assert child.restart_if_due() == ""
    assert starts == [0]
    clock.now = 2.0
    child.restart_if_due()
    assert starts == [0, 2]
    child.end()
    assert "in 4 s" in child.restart_if_due()
    clock.now = 6.0
    child.restart_if_due()
    child.end()
    clock.now = 200.0
    assert "in 2 s" in child.restart_if_due(), "it lasted long enough to be a new failure"


@pytest.mark.parametrize("code", RejectionCode)
def test_a_process_that_the_server_turns_away_says_why(code: RejectionCode) -> None:
    program = f"raise SystemExit({status_of_rejection(code)})"
    command = [sys.executable, "-S", "-c", program]
    child = SupervisedProcess("it", lambda: command, os.environ, Clock(), describe_exit)
    child.start()
    child.end()
    if code is RejectionCode.REVOKED:
        with pytest.raises(RejectedError, match="this client's key was revoked; ask the operator"):
            check_not_revoked(child)
    else:
        check_not_revoked(child)
    assert is_run_finished(child) is (code is RejectionCode.FINISHED)
    expected = f"{describe_rejection(code)}; it restarts in 2 s"
    assert child.restart_if_due() == expected


def test_other_statuses_are_no_rejections() -> None:
    assert [describe_exit(status) for status in (1, 3, 40, 47, 77)] == [""] * 5
    assert [rejection_in(text) for text in (None, "", "x", "0", "7", "²")] == [None] * 6
    assert rejection_in("2") is RejectionCode.REVOKED


def test_a_task_of_a_supernode_that_has_ended_is_given_up_when_the_client_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    stop, errors = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            with executor._task_connection(free_address(), "token", stop) as task:
                task.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPError as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    stop.set()
    asking.join(60)
    assert not asking.is_alive()
    assert [type(error) for error in errors] == [httpx.ConnectError]
    assert [record.getMessage() for record in caplog.records if record.name == "flwr"] == []


def test_a_process_that_does_not_listen_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("samara.devices.live.processes._GRACE_SECONDS", 0.1)
    ready = tmp_path / "ready"
    deaf = (
        "import signal; signal.signal(15, signal.SIG_IGN);"
        f"open({str(ready)!r}, 'w'); signal.pause()"
    )
    child = SupervisedProcess("it", lambda: [sys.executable, "-S", "-c", deaf], os.environ)
    child.start()
    for _ in attempts("the process"):
        if ready.exists():
            break
    assert child.running
    child.terminate()
    child.end()
    assert child.exit_status == -9


def test_a_lock_keeps_others_out(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path / "lock", "somebody is there"),
        pytest.raises(DeviceError, match="somebody is there"),
        exclusive_lock(tmp_path / "lock", "somebody is there", patience=0.15),
    ):
        pass
    with exclusive_lock(tmp_path / "lock", "somebody is there"):
        pass


def test_a_child_does_not_outlive_its_parent() -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux ends a child with its parent")
    child = (
        "import os, sys, signal; from samara.devices.live.processes import exit_with_parent;"
        "exit_with_parent(int(sys.argv[1])); print(os.getpid(), flush=True); signal.pause()"
    )
    parent = (
        "import os, signal, subprocess, sys;"
        f"c = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())]);"
        "signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        int(started.stdout.readline())
        started.kill()
        # the child holds the other end of the pipe: it closes when the child is gone
        assert started.stdout.read() == b""
