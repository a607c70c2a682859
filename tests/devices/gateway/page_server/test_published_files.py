"""The page server of a gateway sends browsers only the listed files, with strict headers."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import Served, serve_phones
from typer.testing import CliRunner
from web_phones import PAGE, ServedPage, make_page, serve_page

from samara.devices.gateway.commands import app as gateway_app
from samara.devices.gateway.page_server import page_app
from samara.devices.gateway.page_server.page_app import HEADERS
from samara.devices.gateway.page_server.published_files import (
    INTEGRITY_FILE,
    page_files,
    program_files,
)
from samara.devices.gateway.page_server.settings import PageSettings
from samara.devices.phone import extra
from samara.shared.errors import ConfigError, DeviceError
from samara.shared.network.certificates import make_certificates

SCRIPT = PAGE["app.js"]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_phones([]) as served:
        yield served


@pytest.fixture(scope="module")
def page(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with serve_page(served, tmp_path_factory.mktemp("page")) as page:
        yield page


def ask(page: ServedPage, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    return httpx.request(method, f"{page.origin}{path}", headers=headers)


def test_the_page_comes_with_headers_that_keep_others_out(page: ServedPage) -> None:
    answer = ask(page, "/")
    assert answer.content == PAGE["index.html"]
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for path in ("/", "/app.js", "/absent", "/samara/join"):
        headers = ask(page, path).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'; script-src 'self' 'wasm-unsafe-eval';" in policy
    assert "unsafe-inline" not in policy
    assert HEADERS["cross-origin-opener-policy"] == "same-origin"
    assert HEADERS["cross-origin-embedder-policy"] == "require-corp"


def test_files_are_kept_by_their_hash_and_sent_in_part(page: ServedPage) -> None:
    whole = ask(page, "/app.js")
    tag = f'"{hashlib.sha256(SCRIPT).hexdigest()}"'
    assert (whole.content, whole.headers["etag"]) == (SCRIPT, tag)
    assert whole.headers["cache-control"] == "no-cache"
    again = ask(page, "/app.js", **{"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    part = ask(page, "/app.js", range="bytes=1000-", **{"if-range": tag})
    assert (part.status_code, part.content) == (206, SCRIPT[1000:])
    assert ask(page, "/app.js", range="bytes=5-9").content == SCRIPT[5:10]
    assert ask(page, "/app.js", range="bytes=5-9", **{"if-range": '"old"'}).content == SCRIPT
    assert ask(page, "/app.js", range="bytes=900000-").status_code == 416
    head = ask(page, "/app.js", "HEAD")
    assert (head.headers["content-length"], head.content) == (str(len(SCRIPT)), b"")
    engine = ask(page, "/assets/engine-1.wasm").headers
    assert engine["content-type"] == "application/wasm"
    assert "immutable" in engine["cache-control"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/integrity.json", 200),
        ("GET", "/index.html/", 404),
        ("GET", "/../app.js", 200),  # the client resolves it
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("GET", "/assets/..%5cindex.html", 404),
        ("GET", "//etc/passwd", 404),
        ("GET", "/program/index.json", 404),
        ("GET", "/stream", 404),
        ("POST", "/app.js", 405),
        ("PUT", "/samara/join", 404),
        ("POST", "/samara/join", 404),  # this gateway's server has no keys
    ],
)
def test_nothing_else_is_sent(page: ServedPage, method: str, path: str, status: int) -> None:
    assert ask(page, path, method).status_code == status


@pytest.mark.parametrize(
    "headers", [{"host": "rebound.example"}, {"origin": "https://evil.example"}]
)
def test_another_sites_name_and_pages_get_nothing(
    page: ServedPage, headers: dict[str, str]
) -> None:
    assert ask(page, "/", **headers).status_code == 403


def test_a_browser_that_takes_a_file_too_slowly_is_let_go(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_app, "PIECE_SECONDS", 0.05)
    large = {"index.html": b"", "large.bin": bytes(2**24)}
    make_page(tmp_path, large)
    page = ServedPage(served, tmp_path)
    with httpx.stream("GET", f"{page.origin}/large.bin") as answer:
        pieces = answer.iter_raw(2**16)
        next(pieces)
        served.run(_until_idle(page))
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
    page.close()


async def _until_idle(page: ServedPage) -> None:
    """Wait until the server has no open request."""
    while page.server._state.tasks:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ({"../secret": "0" * 64}, r"'\.\./secret' is not a path of the page"),
        ({"/etc/passwd": "0" * 64}, "is not a path of the page"),
        ({"a//b": "0" * 64}, "is not a path of the page"),
        ({"program/index.json": "0" * 64}, "is not a path of the page"),
        ({"index.html": "0" * 64}, "index.html differs from its listed SHA-256"),
        ({"link.js": hashlib.sha256(b"secret").hexdigest()}, "leads out of the folder"),
        ({"app.js": hashlib.sha256(SCRIPT).hexdigest()}, "index.html"),
        (["index.html"], "not a page that can be served"),
        (None, "not a page that can be served"),
        ({"absent.js": "0" * 64}, r"absent\.js: cannot be read"),
    ],
)
def test_a_page_that_is_not_as_listed_is_refused(tmp_path: Path, listed: Any, problem: str) -> None:
    folder = make_page(tmp_path / "page")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link.js").symlink_to(tmp_path / "secret")
    (folder / INTEGRITY_FILE).write_text(json.dumps(listed))
    with pytest.raises(DeviceError, match=f"{problem}.*make phone-page"):
        page_files(folder)


def test_a_page_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"integrity\.json: cannot be read: .*--page"):
        page_files(tmp_path)


def test_a_program_without_an_index_is_not_for_browsers(tmp_path: Path) -> None:
    with pytest.raises(
        DeviceError, match=r"not a program for browsers, because model\.index\.json is m"
    ):
        program_files(tmp_path / "model.onnx")
    (tmp_path / "model.index.json").write_text('{"version": 2}')
    with pytest.raises(
        DeviceError, match=r"not the index of a program: .*export the program again"
    ):
        program_files(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--web", "0.0.0.0:9443"], "--web and --program: serving browsers needs both options"),
        (["--page", "page"], "--web and --program: serving browsers needs both options"),
        (["--web", "0.0.0.0:9443", "--program", "m.onnx"], "trust the certificate; add --cert"),
        (["--web", "9443", "--program", "m.onnx"], "--web 9443: this is not host:port"),
        (
            ["--web", "127.0.0.1:9443", "--program", "m.onnx", "--web-origin", "http://a.com"],
            "--web-origin http://a.com: this is not an origin",
        ),
        (
            ["--web", "0.0.0.0:80", "--program", "m.onnx", "--web-origin", "https://a.example"],
            "--web 0.0.0.0:80 with --web-origin: a reverse proxy passes on plain text",
        ),
        (["--web", "127.0.0.1:9443", "--program", "m.onnx"], "m.index.json is missing"),
    ],
)
def test_what_browsers_could_not_use_is_refused_early(
    tmp_path: Path, options: list[str], problem: str
) -> None:
    tls = make_certificates(tmp_path / "certificates", [])
    page = make_page(tmp_path / "page")
    (tmp_path / "phones").mkdir()
    options = [str(tmp_path / o) if o == "m.onnx" else o for o in options]
    if "--program" in options:
        options += ["--page", str(page)]
    started = ["up", "--superlink", "127.0.0.1:8000", "--insecure", "--certs", str(tls.authority)]
    started += ["--phones", str(tmp_path / "phones"), "--home", str(tmp_path / "home")]
    result = CliRunner().invoke(gateway_app, [*started, *options])
    assert isinstance(result.exception, ConfigError | DeviceError)
    assert problem in str(result.exception)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra.importlib.util, "find_spec", lambda name: None)
    settings = PageSettings("127.0.0.1:9443", Path("m.onnx"), None, "", False)
    with pytest.raises(DeviceError, match=r"--web needs websockets.*samara-fl\[web\]"):
        settings.check()
