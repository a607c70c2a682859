"""Headless Firefox, which a script drives by WebDriver BiDi in the same way as Chromium."""

import itertools
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from driven_browser import Tab, started_browser, telling
from websockets.sync.client import ClientConnection

FIREFOX = ("firefox", "firefox-esr")
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
    """The first page of a driven Firefox; values of scripts must be representable in JSON.

    Args:
        socket: BiDi connection.
        trusts_all: whether it accepts certificates that no public authority has signed.
    """

    def __init__(self, socket: ClientConnection, trusts_all: bool = False) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.said: list[str] = []
        asked = {"alwaysMatch": {"acceptInsecureCerts": trusts_all}}
        self.call("session.new", capabilities=asked)
        self.call("session.subscribe", events=["log.entryAdded"])
        contexts = self.call("browsingContext.getTree")["contexts"]
        self._context = contexts[0]["context"]

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("browsingContext.navigate", context=self._context, url=address, wait="none")

    def _evaluate_now(self, script: str) -> Any:
        as_text = f"(async () => JSON.stringify(await ({script})))()"
        target = {"context": self._context}
        given = {"expression": as_text, "target": target, "awaitPromise": True}
        told = self.call("script.evaluate", **given)
        if told["type"] == "exception":
            return {"exceptionDetails": told["exceptionDetails"]["text"]}
        text = told["result"].get("value")
        return {"result": {"value": None if text is None else json.loads(text)}}

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "log.entryAdded":
            self.said.append(str(message["params"]["text"]))


@contextmanager
def driven_firefox(
    program: str, profile: Path, *flags: str, trusts_all: bool = False
) -> Iterator[Tab]:
    """A Firefox with one page, which is killed at the end of the block.

    Args:
        program: program of Firefox.
        profile: folder of the browser's data, which a later browser with the same folder continues
            to use.
        flags: additional options.
        trusts_all: whether it accepts certificates that no public authority has signed.
    """
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "user.js").write_text(_QUIET)
    own = ["--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port=0"]
    command = [program, *own, *flags, "about:blank"]
    port_file = profile / "WebDriverBiDiServer.json"
    with (
        started_browser(command, port_file, _address) as socket,
        telling(FirefoxTab(socket, trusts_all)) as tab,
    ):
        yield tab


def _address(told: str) -> str:
    """Return the address of a Firefox's BiDi server, from the port file's content."""
    server = json.loads(told)
    return f"ws://{server['ws_host']}:{server['ws_port']}/session"
