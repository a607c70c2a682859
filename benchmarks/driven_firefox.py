"""Firefox without a window, which a script drives by WebDriver BiDi as it drives Chromium."""

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from benchmarks.driven_browser import SECONDS, Tab

FIREFOX = ("firefox", "firefox-esr")
_PORT_FILE = "WebDriverBiDiServer.json"
_POLL_SECONDS = 0.2
_QUIET = """user_pref("app.normandy.enabled", false);
user_pref("app.update.auto", false);
user_pref("browser.aboutwelcome.enabled", false);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
"""


def find_firefox() -> str | None:
    """Return the program; None if there is none on the PATH."""
    return next(filter(None, map(shutil.which, FIREFOX)), None)


class FirefoxTab(Tab):
    """The first page of a driven Firefox; scripts must be expressions with values of JSON.

    Args:
        socket: BiDi connection.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.said: list[str] = []
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        contexts = self.call("browsingContext.getTree")["contexts"]
        self._context = contexts[0]["context"]

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("browsingContext.navigate", context=self._context, url=address, wait="none")

    def _evaluate(self, script: str) -> Any:
        """Return what DevTools would: the value, or details of an exception."""
        as_text = f"(async () => JSON.stringify(await ({script})))()"
        target = {"context": self._context}
        given = {"expression": as_text, "target": target, "awaitPromise": True}
        try:
            told = self.call("script.evaluate", **given)
        except RuntimeError as error:  # the page is about to be another one
            return {"exceptionDetails": str(error)}
        if told["type"] == "exception":
            return {"exceptionDetails": told["exceptionDetails"]["text"]}
        text = told["result"].get("value")
        return {"result": {"value": None if text is None else json.loads(text)}}

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "log.entryAdded":
            self.said.append(str(message["params"]["text"]))


@contextmanager
def driven_firefox(program: str, profile: Path, *flags: str) -> Iterator[Tab]:
    """A Firefox with one page, which is killed at the end of the block.

    Args:
        program: program of Firefox.
        profile: folder of what it keeps, which the next one with the same goes on with.
        flags: more of its options.
    """
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "user.js").write_text(_QUIET)
    (profile / _PORT_FILE).unlink(missing_ok=True)
    own = ("--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port=0")
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([program, *own, *flags, "about:blank"], stdout=quiet, stderr=quiet)
    try:
        address = f"ws://{_address(profile)}/session"
        with connect(address, max_size=None, ping_interval=None, open_timeout=SECONDS) as socket:
            yield FirefoxTab(socket)
    finally:
        process.kill()
        process.wait()


def _address(profile: Path) -> str:
    """Return host and port of a Firefox's BiDi server, once they are there.

    Raises:
        TimeoutError: if they do not come.
    """
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            told = json.loads((profile / _PORT_FILE).read_text())
            return f"{told['ws_host']}:{told['ws_port']}"
        except (OSError, ValueError, KeyError):
            time.sleep(_POLL_SECONDS)
    raise TimeoutError("Firefox does not begin")
