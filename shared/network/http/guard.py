"""The access guard of Samara's HTTP servers.

A server on loopback is open to every program of this machine, but to no web page in its browser.
Two headers distinguish the requests of web pages. A page of another site sends an Origin header. A
page that an attacker's DNS server has pointed to this machine (DNS rebinding) sends a foreign Host
header.
"""

import hmac
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from samara.shared.errors import BusyError, QuestionError, SamaraError, UnknownModelError

OPEN_PATH = "/healthz"
"""Default path that needs no token."""
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "10"},  # a restarted trainer needs time to load its model
}


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        message: the problem and its remedy.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_response(error: SamaraError | RequestError) -> JSONResponse:
    """Return the response for an error, in OpenAI's form."""
    status, code = 503, None
    if isinstance(error, RequestError):
        status = error.status
    elif isinstance(error, UnknownModelError):
        status, code = 404, "model_not_found"
    elif isinstance(error, BusyError):
        status = 429
    elif isinstance(error, QuestionError):
        status = 400
    return JSONResponse(error_body(status, str(error), code), status, _HEADERS.get(status))


def error_body(status: int, message: str, code: str | None = None) -> dict[str, object]:
    """Return an error object in OpenAI's form."""
    server = "server_error" if status >= 500 else "invalid_request_error"
    kind = _KINDS.get(status, server)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def is_loopback(host: str) -> bool:
    """Return whether a name or address is loopback."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """An ASGI application that passes on permitted requests to another, and refuses all others.

    Attributes:
        app: the protected application.
        token: token that a request must carry; empty if no token is needed.
        checks_host: whether requests must have a Host header with a name of this machine.
        open_path: path that needs no token.
        cookie: name of a cookie that may carry the token; empty for none.
    """

    app: ASGIApp
    token: str = ""
    checks_host: bool = True
    open_path: str = OPEN_PATH
    cookie: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        try:
            if self.checks_host and not is_loopback(_host(headers.get("host", ""))):
                raise RequestError(403, "the Host header names another machine; use 127.0.0.1")
            origin = headers.get("origin")
            if origin is not None and not is_loopback(_host(origin)):
                raise RequestError(403, "web pages of other sites may not send requests")
            if self.token and scope["path"] != self.open_path and not self._has_token(scope):
                raise RequestError(
                    401,
                    "the token is missing or wrong; send the header Authorization: Bearer TOKEN",
                )
        except RequestError as error:
            return error_response(error)
        return None

    def _has_token(self, scope: Scope) -> bool:
        connection = HTTPConnection(scope)
        kind, _, given = connection.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_same_token(given.strip(), self.token):
            return True
        brought = connection.cookies.get(self.cookie, "") if self.cookie else ""
        return is_same_token(brought, self.token)


def is_same_token(given: str, token: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _host(value: str) -> str:
    """Return the host in a Host or Origin header, or an empty text if it cannot be read."""
    try:
        return urlsplit(value if "//" in value else f"//{value}").hostname or ""
    except ValueError:
        return ""
