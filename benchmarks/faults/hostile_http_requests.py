"""Kinds of invalid requests to `samara client serve`, and valid requests."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from samara.devices.live.owner.http_requests import MAX_BODY_BYTES

TOKEN = "a-token-of-a-benchmark"
"""Token that a request must contain."""
_POSTS: dict[str, dict[str, Any]] = {
    "/classify": {"text": "a day", "model": "personal"},
    "/feedback": {"text": "a day", "label": "no label of the task"},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
        "temperature": 0.5,
        "stream": False,
    },
    "/v1/completions": {"prompt": "once", "max_tokens": 2, "top_p": 0.5, "stop": ["x"]},
}
_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**63, 10**30, 1.5, 1e308, "", "personal", "gpt", "\0", "x" * 300),
    *([], [""], [[]], [None], {}, {"a": "b"}, {"": {}}, [{"role": "user", "content": "a"}]),
]
BROKEN = frozenset({400})
"""Allowed statuses of an answer to an invalid request."""


class Hostile(NamedTuple):
    """A request and the allowed answers to it.

    Attributes:
        content: bytes of the request.
        statuses: allowed statuses; empty if any answer, or no answer, is allowed.
        ends: whether the sender closes its half of the connection after the bytes.
    """

    content: bytes
    statuses: frozenset[int] = frozenset()
    ends: bool = False


def request(
    body: bytes,
    path: str = "/classify",
    *,
    method: str = "POST",
    more: bytes = b"",
    host: str = "127.0.0.1",
    kind: str = "application/json",
    authorization: str = f"Bearer {TOKEN}",
) -> bytes:
    """Return the bytes of a request, with its body's length in the headers."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
        f"Authorization: {authorization}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    return head.encode("latin-1") + more + b"\r\n" + body


def sound(rng: np.random.Generator) -> Hostile:
    """Return a valid question, which must be answered."""
    body = {"text": " ".join(rng.choice(["soup", "cold", "lovely", "day"], 5))}
    return Hostile(request(json.dumps(body).encode()), frozenset({200}))


def _random_body(rng: np.random.Generator) -> Hostile:
    return Hostile(request(rng.bytes(int(rng.integers(200))), _path(rng)), BROKEN)


def _cut_off(rng: np.random.Generator) -> Hostile:
    path = _path(rng)
    body = json.dumps(_POSTS[path]).encode()
    return Hostile(request(body[: rng.integers(len(body))], path), BROKEN)


def _other_values(rng: np.random.Generator) -> Hostile:
    """Return a valid body with one value replaced; some of the new values are also valid."""
    path = _path(rng)
    name = rng.choice(list(_POSTS[path]))
    body = _POSTS[path] | {name: _VALUES[rng.integers(len(_VALUES))]}
    return Hostile(request(json.dumps(body).encode(), path), frozenset({200, 201, 400, 404}))


def _other_names(rng: np.random.Generator) -> Hostile:
    path = _path(rng)
    name = rng.choice(["surprise", "__class__", "", "Text", "n", "tools", "logprobs", "\udc80"])
    body = json.dumps(_POSTS[path] | {str(name): 7}).encode()
    return Hostile(request(body, path), BROKEN)


def _nested(rng: np.random.Generator) -> Hostile:
    path, depth = _path(rng), int(rng.integers(50, 100_000))
    opening, closing = ((b"[", b"]"), (b'{"a":', b"}"))[rng.integers(2)]
    value = opening * depth + b"1" + closing * depth
    name = str(rng.choice(list(_POSTS[path]))).encode()
    return Hostile(request(b'{"' + name + b'": ' + value + b"}", path), BROKEN | {413})


def _large(rng: np.random.Generator) -> Hostile:
    size = MAX_BODY_BYTES + int(rng.integers(1, 2**20))
    body = json.dumps({"text": "x" * size}).encode()
    if rng.integers(2):
        return Hostile(request(body, _path(rng)), frozenset({413}))
    parts = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    return Hostile(_chunked(parts, _path(rng)), frozenset({413}))


def _long_text(rng: np.random.Generator) -> Hostile:
    """Return a body within the size limit with a text too long for the model or a question."""
    size = int(rng.integers(2**18, 2**19))
    body = json.dumps({"text": "ab " * (size // 3)}).encode()
    return Hostile(request(body), frozenset({200, 400}))


def _other_type(rng: np.random.Generator) -> Hostile:
    kinds = ["text/plain", "", "application/jsonx", "multipart/form-data; boundary=x", "\xff"]
    path = _path(rng)
    body = json.dumps(_POSTS[path]).encode()
    return Hostile(request(body, path, kind=str(rng.choice(kinds))), frozenset({415}))


def _other_path(rng: np.random.Generator) -> Hostile:
    methods = ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"]
    if rng.integers(2):
        method = str(rng.choice(methods))
        return Hostile(request(b"", _path(rng), method=method), frozenset({405}))
    paths = ["/", "/v1", "/v1/models/gpt", "/../etc/passwd", "/%2e%2e/%00", "/classify/x", "*"]
    path = str(rng.choice([*paths, "//classify", "/v1/models/%ff", "/" + "a" * 5_000]))
    return Hostile(request(b"", path, method="GET"), frozenset({404}))


def _headers(rng: np.random.Generator) -> Hostile:
    """Return headers that are invalid HTTP."""
    lines = [
        *(b"Content-Length: -1", b"Content-Length: 99", b"Content-Length: 1e3", b"no colon"),
        *(b"a b: c", b": empty", b"x: \0", b"x: a\rb", b"Host: a.example"),
        *(b"Transfer-Encoding: gzip, chunked", b"\xff\xfe: x"),
    ]
    line = lines[rng.integers(len(lines))]
    return Hostile(request(b'{"text": "a"}', more=line + b"\r\n"), BROKEN)


def _large_headers(rng: np.random.Generator) -> Hostile:
    """Return more headers than the server reads.

    The unread bytes may break the connection before the answer.
    """
    line = b"x: " + b"y" * int(rng.integers(100_000, 300_000)) + b"\r\n"
    return Hostile(request(b'{"text": "a"}', more=line))


def _odd_headers(rng: np.random.Generator) -> Hostile:
    """Return headers that are unusual but valid HTTP."""
    lines = [
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x",
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
        b"Expect: 100-continue",
        b" folded: x",
        b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https",
        b"Cookie: " + rng.bytes(8).hex().encode(),
        b"Accept-Encoding: " + b"gzip, " * 500 + b"x",
    ]
    line = lines[rng.integers(len(lines))]
    return Hostile(request(b'{"text": "a"}', more=line + b"\r\n"), frozenset({200}))


def _other_host(rng: np.random.Generator) -> Hostile:
    forbidden = frozenset({403})
    if rng.integers(2):
        hosts = ["evil.example", "127.0.0.1.evil.example", "", "[", "[::1", "a@b@c", "10.0.0.1:80"]
        return Hostile(request(b'{"text": "a"}', host=str(rng.choice(hosts))), forbidden)
    origins = [b"https://evil.example", b"null", b"http://[", b"", b"file://", b"\xe9"]
    line = b"Origin: " + origins[rng.integers(len(origins))] + b"\r\n"
    return Hostile(request(b'{"text": "a"}', more=line), forbidden)


def _broken_text(rng: np.random.Generator) -> Hostile:
    texts = [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\xf8\x88\x80"]
    text = texts[rng.integers(len(texts))]
    name = (b"text", b"model", b"prompt")[rng.integers(3)]
    return Hostile(request(b'{"%s": "%s"}' % (name, text), _path(rng)), BROKEN)


def _wrong_token(rng: np.random.Generator) -> Hostile:
    given = ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"]
    body = json.dumps({"text": "a"}).encode()
    wrong = str(rng.choice([*given, f"Bearer {TOKEN[:-1]}", "Bearer " + "x" * 9_000]))
    return Hostile(request(body, _path(rng), authorization=wrong), frozenset({401}))


def _half(rng: np.random.Generator) -> Hostile:
    """Return the first part of a valid request; the sender then closes the connection."""
    path = _path(rng)
    content = request(json.dumps(_POSTS[path]).encode(), path)
    return Hostile(content[: rng.integers(1, len(content))], ends=True)


def _unread(rng: np.random.Generator) -> Hostile:
    """Return a request for a streamed answer that the sender does not read."""
    path = list(_POSTS)[2 + rng.integers(2)]
    body = _POSTS[path] | {"max_tokens": 50, "stream": True}
    return Hostile(request(json.dumps(body).encode(), path), ends=True)


def _no_http(rng: np.random.Generator) -> Hostile:
    openings = [
        b"",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9\r\n",
    ]
    content = openings[rng.integers(len(openings))] + rng.bytes(int(rng.integers(1, 300)))
    return Hostile(content + b"\r\n\r\n", ends=True)


def _broken_chunks(rng: np.random.Generator) -> Hostile:
    """Return a request with damaged body chunks; the answer may or may not use the body."""
    parts = [
        b"zz\r\n",
        b"5\r\nabcdefgh\r\n",
        b"-1\r\n",
        b"f" * 40 + b"\r\n",
        b"1\r\na\r\n0\r\nx\r\n",
    ]
    path = str(rng.choice([*_POSTS, "/nothing"]))
    return Hostile(_chunked(parts[rng.integers(len(parts))] + b"\r\n", path), BROKEN | {404, 413})


def _pipelined(rng: np.random.Generator) -> Hostile:
    """Return a valid request directly followed by others; the first must be answered first."""
    first = request(b'{"text": "a"}').replace(b"Connection: close\r\n", b"")
    behind = (request(b"{}"), rng.bytes(50), first + first)[rng.integers(3)]
    return Hostile(first + behind, frozenset({200}))


KINDS: dict[str, Callable[[np.random.Generator], Hostile]] = {
    kind.__name__.lstrip("_").replace("_", " "): kind
    for kind in (
        *(sound, _random_body, _cut_off, _other_values, _other_names, _nested, _large),
        *(
            _long_text,
            _other_type,
            _other_path,
            _headers,
            _large_headers,
            _odd_headers,
            _other_host,
        ),
        *(_broken_text, _wrong_token, _half, _unread, _no_http, _broken_chunks, _pipelined),
    )
}
"""Kinds of requests by name."""


def _path(rng: np.random.Generator) -> str:
    return str(rng.choice(list(_POSTS)))


def _chunked(parts: bytes, path: str) -> bytes:
    head = request(b"", path).partition(b"\r\n\r\n")[0].replace(b"Content-Length: 0\r\n", b"")
    return head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + parts
