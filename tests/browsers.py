"""A real headless browser on pages of this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from driven_browser import driven, find_chromium
from driven_firefox import find_firefox

JOINED = """(async () => {
  const [{ makeKey }, { openStore }] = [await import("/signing.js"), await import("/store.js")];
  const joined = { key: await makeKey(), scenario: "", isRegistered: true };
  await (await openStore("samara")).write(new Map([["joined", joined]]));
  location.reload();
})()"""
"""Script that stores a joined run on the page, because joining itself needs a server."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, TypeScript as JavaScript without its types, and prints nothing."""

    extensions_map: ClassVar = {**SimpleHTTPRequestHandler.extensions_map, ".ts": "text/javascript"}

    def end_headers(self) -> None:
        """Let the browser cache files that many pages share."""
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def chromium() -> str:
    """The path of Chromium; the test is skipped if Chromium is missing."""
    return find_chromium() or pytest.skip("needs Chromium on the PATH")


def firefox() -> str:
    """The path of Firefox; the test is skipped if Firefox is missing."""
    return find_firefox() or pytest.skip("needs Firefox on the PATH")


def read_once(address: str, profile: Path, ready: str, value: str) -> str:
    """The value of an expression on a page, once another expression is true there."""
    with driven(chromium(), profile) as tab:
        tab.open(address)
        tab.until(ready, seconds=120)
        return str(tab.run(value))


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder's files on loopback; yield the address."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
