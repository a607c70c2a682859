"""The web page of a run: its content as JSON, and the application that serves it."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from samara.server.live.run_status import ClientStatus, RunStatus
from samara.server.live.status import StatusReader
from samara.server.watch.client_order import clients_to_show, link_of, power_of, reason_of
from samara.server.watch.metrics import metrics_text
from samara.shared.errors import SamaraError
from samara.shared.network.http.guard import Guard, RequestError, error_response, is_same_token

LOGIN_PATH = "/login"
MOST_STREAMS = 16
"""Maximum number of browser pages with live updates at the same time."""
_MOST_CLIENTS = 500
"""Maximum number of clients that the page lists; clients with problems come first."""
_SECONDS_BETWEEN = 1.0
_SILENT_SECONDS = 15.0
"""Maximum silence of a stream in seconds, so that a browser can detect a lost connection."""
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page_value(status: RunStatus) -> dict[str, Any]:
    """Return the content of the page for a run's status, as a JSON object."""
    ordered = clients_to_show(status)
    shown = ordered[:_MOST_CLIENTS]
    return {
        "name": status.name,
        "state": status.state,
        "round": status.round,
        "planned_rounds": status.planned_rounds,
        "digest": status.digest,
        "waits_for": status.waits_for,
        "connected": status.connected,
        "reports": status.reports,
        "failures": status.failures,
        "bytes_up": status.bytes_up,
        "bytes_down": status.bytes_down,
        "epsilon": status.epsilon,
        "rounds": [asdict(each) for each in status.rounds],
        "accuracy": {
            name: [(each.round, each.accuracy) for each in curve]
            for name, curve in status.curves.items()
        },
        "messages": [asdict(each) for each in status.messages],
        "clients": [_client_value(number, client) for number, client in shown],
        "more_clients": len(ordered) - len(shown),
    }


def _client_value(number: int, client: ClientStatus) -> dict[str, Any]:
    return {
        "name": client.name or str(number),
        "state": client.state,
        "link": link_of(client),
        "last_round": client.last_round,
        "last_report_time": client.last_report_time,
        "reports": client.reports,
        "failures": client.failures,
        "bytes_up": client.bytes_up,
        "bytes_down": client.bytes_down,
        "power": power_of(client),
        "why": reason_of(client),
    }


class StatusFeed:
    """The status of a run, read at most once a second regardless of the number of requests.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._reader = StatusReader(run)
        self._lock = threading.Lock()
        self._status: RunStatus | None = None
        self._read_at = 0.0

    def read(self) -> RunStatus:
        """Return the status, which is at most a second old.

        Raises:
            SamaraError: if the status cannot be read.
        """
        with self._lock:
            if self._status is None or time.monotonic() >= self._read_at + _SECONDS_BETWEEN:
                self._status, self._read_at = self._reader.read(), time.monotonic()
            return self._status


class RunPage:
    """The web application with a run's page and metrics.

    Args:
        run: folder of the run.
        token: token that every request must carry, as a bearer token or in the page's cookie.
        cookie: name of the cookie.
    """

    def __init__(self, run: Path, token: str, cookie: str) -> None:
        self._feed, self._token, self._cookie = StatusFeed(run), token, cookie
        self._streams = 0

    def app(self) -> ASGIApp:
        """Return the ASGI application."""
        routes = [Route(path, self._file) for path in _FILES]
        routes += [
            Route(LOGIN_PATH, self._login),
            Route("/status.json", self._status),
            Route("/events", self._events),
            Route("/metrics", self._metrics),
        ]
        handlers: Any = {SamaraError: _refuse, RequestError: _refuse}
        app = Starlette(routes=routes, exception_handlers=handlers)
        return Guard(app, self._token, open_path=LOGIN_PATH, cookie=self._cookie)

    async def _login(self, request: Request) -> Response:
        """Store the token from the login address in a cookie, and redirect to the page."""
        if not is_same_token(request.query_params.get("token", ""), self._token):
            raise RequestError(
                401, "the token is wrong; `samara server up` names the file with the token"
            )
        response = RedirectResponse("/", 303, _HEADERS)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
        return response

    async def _file(self, request: Request) -> Response:
        name, media_type = _FILES[request.url.path]
        text = (resources.files("samara.server.watch") / name).read_text(encoding="utf-8")
        return Response(text, headers=_HEADERS, media_type=media_type)

    async def _status(self, request: Request) -> Response:
        status = await run_in_threadpool(self._feed.read)
        return JSONResponse(page_value(status), headers=_HEADERS)

    async def _metrics(self, request: Request) -> Response:
        status = await run_in_threadpool(self._feed.read)
        text, media_type = metrics_text(status, request.headers.get("accept", ""))
        return Response(text, headers=_HEADERS | {"Content-Type": media_type})

    async def _events(self, request: Request) -> Response:
        if self._streams >= MOST_STREAMS:
            raise RequestError(
                503, f"{MOST_STREAMS} pages of this run are already open; close one of them"
            )
        stream = self._changes()
        return StreamingResponse(stream, headers=_HEADERS, media_type="text/event-stream")

    async def _changes(self) -> AsyncIterator[str]:
        """Yield the status as a server-sent event whenever it changes."""
        self._streams += 1
        sent = ""
        sent_at = time.monotonic()
        try:
            while True:
                text = json.dumps(await run_in_threadpool(self._try_to_read))
                if text != sent:
                    sent = text
                    sent_at = time.monotonic()
                    yield f"data: {text}\n\n"
                elif time.monotonic() > sent_at + _SILENT_SECONDS:
                    sent_at = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(_SECONDS_BETWEEN)
        finally:
            self._streams -= 1

    def _try_to_read(self) -> Mapping[str, Any]:
        try:
            return page_value(self._feed.read())
        except SamaraError as error:
            return {"error": str(error)}


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, SamaraError | RequestError)
    return error_response(error)
