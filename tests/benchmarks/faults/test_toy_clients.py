"""Toy devices, which end when their run is finished."""

import threading

import httpx
import pytest

from benchmarks.faults.toy_clients import heartbeats_end_with_the_run
from samara.shared.network.rejection import HEADER, RejectionCode


def error_of(code: RejectionCode) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://127.0.0.1/heartbeat")
    response = httpx.Response(410, headers={HEADER: str(int(code))}, request=request)
    return httpx.HTTPStatusError("410 Gone", request=request, response=response)


def test_only_the_end_of_the_run_may_end_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda raised: found.append(raised.exc_value))
    before = threading.excepthook
    errors = [error_of(RejectionCode.FINISHED), error_of(RejectionCode.REVOKED), ValueError()]

    def fail(error: Exception) -> None:
        raise error

    with heartbeats_end_with_the_run():
        for error in errors:
            thread = threading.Thread(target=fail, args=(error,))
            thread.start()
            thread.join()
    assert found == errors[1:]
    assert threading.excepthook is before
