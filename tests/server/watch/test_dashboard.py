"""The page of a run on loopback: access, its stream of changes, and its metrics."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.store import METRICS_FILE
from samara.server.watch import page
from samara.server.watch.dashboard import Dashboard
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.storage.events import append_event

SECONDS = 60.0
PATHS = "/", "/page.js", "/page.css", "/status.json", "/events", "/metrics"
NAME = "kitchen"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    ClientKeys(tmp_path / KEYS_FOLDER).create(NAME)
    return tmp_path


@pytest.fixture
def dashboard(run: Path) -> Iterator[Dashboard]:
    with Dashboard(run, 0) as started:
        yield started


def token_of(dashboard: Dashboard) -> str:
    return dashboard.token_file.read_text().strip()


@pytest.fixture
def client(dashboard: Dashboard) -> Iterator[httpx.Client]:
    """A client without a token."""
    with httpx.Client(base_url=dashboard.address, timeout=SECONDS) as made:
        yield made


@pytest.fixture
def browser(dashboard: Dashboard) -> Iterator[httpx.Client]:
    """A browser that has opened the address printed by the server."""
    with httpx.Client(timeout=SECONDS, follow_redirects=True) as made:
        assert made.get(dashboard.login_address).status_code == 200
        made.base_url = httpx.URL(dashboard.address)
        yield made


def evaluation(accuracy: float) -> dict[str, object]:
    columns = {"global": {"mean_client_accuracy": accuracy, "loss": 0.1}}
    event = {"event": "evaluation", "round": 0, "split": "validation", "refused": {}}
    return event | {"columns": columns, "bytes_up": 1, "bytes_down": 1}


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_shown(client: httpx.Client, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "samara-1=wrong"}):
        answer = client.get(path, headers=headers)
        assert answer.status_code == 401
        assert NAME not in answer.text


def test_a_wrong_token_gives_no_cookie(client: httpx.Client) -> None:
    for query in ("", "?token=", "?token=wrong", "?token=é"):
        answer = client.get(f"/login{query}")
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_the_printed_address_opens_the_page_once_and_for_all(
    dashboard: Dashboard, browser: httpx.Client
) -> None:
    assert dashboard.token_file.stat().st_mode & 0o777 == 0o600
    (cookie,) = browser.cookies.jar
    assert cookie.has_nonstandard_attr("HttpOnly")
    for path in ("/", "/page.js", "/page.css", "/status.json"):
        answer = browser.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert token_of(dashboard) not in answer.text


def test_the_page_has_no_code_or_style_of_its_own(browser: httpx.Client) -> None:
    text = browser.get("/").text
    assert not re.search(r"<script(?![^>]*src=)|<style| style=| on\w+=|https?://", text)
    assert "innerHTML" not in browser.get("/page.js").text


def test_other_sites_and_names_are_refused(client: httpx.Client, dashboard: Dashboard) -> None:
    token = {"Authorization": f"Bearer {token_of(dashboard)}"}
    assert client.get("/metrics", headers=token).status_code == 200
    for header in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
        assert client.get("/metrics", headers=token | header).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/../keys/kitchen.key", "/%2e%2e/keys/kitchen.key", "/dashboard.token", "/page.html/.."],
)
def test_files_of_the_run_are_out_of_reach(
    dashboard: Dashboard, browser: httpx.Client, path: str
) -> None:
    (cookie,) = browser.cookies.jar
    with socket.create_connection(("127.0.0.1", dashboard.port), SECONDS) as raw:
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        raw.sendall(f"{request}Cookie: {cookie.name}={cookie.value}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(2**16), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"PRIVATE" not in answer


def test_only_get_is_allowed(browser: httpx.Client) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert browser.request(method, "/status.json").status_code == 405


def test_the_stream_brings_what_changes(browser: httpx.Client, run: Path) -> None:
    with browser.stream("GET", "/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        first = json.loads(next(lines).removeprefix("data: "))
        assert [client["name"] for client in first["clients"]] == [NAME]
        append_event(run / METRICS_FILE, evaluation(0.5))
        news = json.loads(next(line for line in lines if line).removeprefix("data: "))
        assert news["accuracy"]["global"] == [[0, 0.5]]


def test_streams_are_limited(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_STREAMS", 1)
    with browser.stream("GET", "/events") as stream:
        lines = stream.iter_lines()  # the stream ends with its last reference
        next(lines)
        assert browser.get("/events").status_code == 503
        assert browser.get("/status.json").status_code == 200


def test_metrics_need_a_bearer_token_and_parse(client: httpx.Client, dashboard: Dashboard) -> None:
    token = {"Authorization": f"Bearer {token_of(dashboard)}"}
    families = {
        f.name: f
        for f in text_string_to_metric_families(client.get("/metrics", headers=token).text)
    }
    (sample,) = families["samara_client_resting"].samples
    assert (sample.labels["name"], sample.value) == (NAME, 0)
    asked = token | {"Accept": "application/openmetrics-text; version=1.0.0"}
    assert client.get("/metrics", headers=asked).text.endswith("# EOF\n")


def test_a_port_in_use_and_a_short_token_are_errors(run: Path, dashboard: Dashboard) -> None:
    with pytest.raises(DeviceError, match="set --dashboard-port"):
        Dashboard(run, dashboard.port)
    dashboard.token_file.write_text("short\n")
    with pytest.raises(ConfigError, match=r"token of --dashboard .*dashboard\.token"):
        Dashboard(run, 0)


def test_the_same_token_serves_after_a_restart(run: Path) -> None:
    with Dashboard(run, 0) as first:
        token = token_of(first)
    with Dashboard(run, 0) as second:
        assert token_of(second) == token
