"""Phones learn from their gateway that the run is finished, whatever they are doing."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from gateways import SECONDS, Echo, Served, keys_in, opened_stream, serve_phones

from samara.client.forward.turns import forward_pass
from samara.client.trainer.idle_work import InterruptionError
from samara.devices.gateway import process as gateway_process
from samara.devices.gateway.admitted_keys import AdmittedKeys
from samara.devices.gateway.process import _await_phones
from samara.devices.live.connection.gateway_stream import attach
from samara.devices.phone.reference_client.phone_worker import PhoneWorker
from samara.shared.proto.trainer_pb2 import TaskKind
from samara.shared.protocol.client_index import client_index_of_key
from samara.shared.protocol.signing import SigningKey


class Due:
    """A phone with due private rounds, which begin and end when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.taken = 0

    def take_private_rounds(self) -> None:
        self.begun.set()
        self.go_on.wait(SECONDS)
        self.taken += 1


@pytest.fixture
def keys(tmp_path: Path) -> list[SigningKey]:
    return keys_in(tmp_path)


@pytest.fixture
def served(keys: list[SigningKey]) -> Iterator[Served]:
    with serve_phones(keys) as served:
        yield served


def attaching(
    pool: ThreadPoolExecutor, served: Served, key: SigningKey, phone: Echo
) -> Future[bool]:
    return pool.submit(attach, phone, key, served.endpoint, threading.Event())  # type: ignore[arg-type]


def client(key: SigningKey) -> int:
    return client_index_of_key(key.public)


def test_all_phones_hear_it_whatever_they_are_doing(served: Served, keys: list[SigningKey]) -> None:
    hold = threading.Event()
    idle, busy, late = (Echo(client(key)) for key in keys)
    busy.hold = hold
    with ThreadPoolExecutor() as pool:
        ended = [
            attaching(pool, served, key, phone)
            for key, phone in zip(keys, (idle, busy), strict=False)
        ]
        served.until(lambda gateway: len(gateway.attached_phones) == 2)
        asked = served.start_asking(TaskKind.TRAIN, b"x", SECONDS, [busy.device])
        while not busy.asked:
            served.until(lambda gateway: True)
        served.run(served.gateway.finish())
        assert ended[0].result(SECONDS)
        assert not ended[1].done()
        hold.set()  # its answer comes too late, and it hears why
        assert ended[1].result(SECONDS)
        assert attaching(pool, served, keys[2], late).result(SECONDS)
        asked.cancel()
    served.until(lambda gateway: not gateway.attached_phones)
    assert served.gateway.told == {client(key) for key in keys}
    assert not served.gateway.refused
    assert late.asked == 0


def test_a_stranger_is_told_nothing(served: Served, keys: list[SigningKey], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    [stranger, *_] = keys_in(tmp_path / "other")
    served.run(served.gateway.finish())
    with served.endpoint.channel() as channel:
        stream = opened_stream(channel, stranger)
        with pytest.raises(grpc.RpcError) as error:
            next(stream)
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
    assert not served.gateway.told


def test_a_gateway_waits_for_those_that_are_away_and_not_for_ever(
    served: Served, keys: list[SigningKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted, stop = AdmittedKeys(tmp_path / "phones"), threading.Event()
    (tmp_path / "phones").mkdir()
    for number, key in enumerate(keys[:2]):
        (tmp_path / "phones" / f"{number}.pem").write_bytes(key.public)
    with ThreadPoolExecutor() as pool:
        ended = attaching(pool, served, keys[0], Echo(client(keys[0])))
        served.until(lambda gateway: len(gateway.attached_phones) == 1)
        served.run(served.gateway.finish())
        waiting = pool.submit(_await_phones, served.gateway, admitted, stop)
        assert ended.result(SECONDS)
        assert not waiting.done()
        assert attaching(pool, served, keys[1], Echo(client(keys[1]))).result(SECONDS)
        waiting.result(SECONDS)
    (tmp_path / "phones" / "2.pem").write_bytes(keys[2].public)
    monkeypatch.setattr(gateway_process, "_FAREWELL_SECONDS", 0.0)
    _await_phones(served.gateway, admitted, stop)
    monkeypatch.undo()
    stop.set()
    _await_phones(served.gateway, admitted, stop)  # a signal ends it
    assert client(keys[2]) not in served.gateway.told


def test_private_rounds_that_are_due_are_taken_before_a_phone_ends() -> None:
    due = Due()
    worker = PhoneWorker(due)  # type: ignore[arg-type]
    with ThreadPoolExecutor() as pool:
        ending = pool.submit(worker.finish)
        assert due.begun.wait(SECONDS)
        assert not ending.done()
        due.go_on.set()
        ending.result(SECONDS)
        assert due.taken  # and between messages the worker may have looked for more
    worker.close()


def test_a_signal_ends_them() -> None:
    due = Due()

    def take() -> None:
        due.begun.set()
        while True:
            with forward_pass():
                due.go_on.wait(0.01)

    due.take_private_rounds = take  # type: ignore[method-assign]
    worker = PhoneWorker(due)  # type: ignore[arg-type]
    with ThreadPoolExecutor() as pool:
        ending = pool.submit(worker.finish)
        assert due.begun.wait(SECONDS)
        worker.close()
        with pytest.raises(InterruptionError):
            ending.result(SECONDS)
