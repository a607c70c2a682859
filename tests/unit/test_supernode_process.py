"""What the process of Flower's SuperNode says of a server that does not answer."""

import logging
from collections.abc import Iterator

import httpx
import pytest

from devices.live.supernode import Reachability, silence_foreign_lines, watch_requests

ADDRESS = "127.0.0.1:8000"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "samara.device"]


@pytest.fixture
def flower() -> Iterator[logging.Logger]:
    logger = logging.getLogger("flwr")
    before = list(logger.filters)
    yield logger
    logger.filters[:] = before


def test_a_server_that_does_not_answer_is_named_once_and_again_when_it_does(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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

    def handle(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    watch_requests(Reachability())
    with httpx.Client() as client:
        while answers:
            try:
                client.get(f"http://{ADDRESS}/v1/fleet/")
            except httpx.TransportError:
                continue
    assert lines(caplog) == [
        f"the server {ADDRESS} does not answer: Connection refused; trying again until it does. "
        "It may have finished its run: its operator knows",
        f"the server {ADDRESS} answers again",
    ]


def test_a_server_that_cannot_answer_now_is_named_with_its_status(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unable = httpx.Response(503)
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda *_: unable)
    watch_requests(Reachability())
    with httpx.Client() as client:
        client.get(f"http://{ADDRESS}/v1/fleet/")
    assert f"the server {ADDRESS} does not answer: HTTP status 503" in lines(caplog)[0]


def test_flowers_lines_about_tries_are_left_out_and_others_are_not(
    flower: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    silence_foreign_lines()
    said = [
        "EXPERIMENTAL: SuperExec authentication is experimental",
        "Connection attempt failed, retrying in 6.91 seconds",
        "Giving up reconnection after 3.00 seconds and 2 tries.",
        "Failed to send message 8e54: Failed to push object with ID '8e54' for run 3545.",
        "SSL/TLS handshake error detected.",
    ]
    records = [flower.makeRecord("flwr", logging.WARNING, "", 0, text, (), None) for text in said]
    kept = [record.getMessage() for record in records if flower.filter(record)]
    assert kept == ["SSL/TLS handshake error detected."]
    assert lines(caplog) == ["an answer did not reach the server, which may ask for it again"]
