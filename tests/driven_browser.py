"""A real browser, without a window, that a test drives by the DevTools protocol."""

import base64
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browsers import FLAGS, chromium
from websockets.sync.client import ClientConnection, connect

SECONDS = 60.0
_PORT_FILE = "DevToolsActivePort"


class Tab:
    """A page of a driven browser.

    Args:
        socket: the DevTools connection of the page.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.said: list[str] = []
        self.call("Runtime.enable")
        self.call("Page.enable")

    def call(self, method: str, **given: Any) -> Any:
        """The result of a DevTools method."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": given}))
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what the page writes to its console, and its errors."""
        if message.get("method") == "Runtime.consoleAPICalled":
            arguments = message["params"]["args"]
            self.said += [str(one.get("value", one.get("description"))) for one in arguments]
        elif message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description", details["text"]))

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression of the page, awaited."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, script: str, seconds: float = SECONDS) -> Any:
        """The value of an expression, once it is true in the sense of JavaScript."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            result = self.call(
                "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
            )
            if "exceptionDetails" not in result and result["result"].get("value"):
                return result["result"]["value"]
            time.sleep(0.2)
        raise AssertionError(f"{script} did not become true; the page said {self.said[-9:]}")

    def show(self, width: int, dark: bool, file: Path) -> None:
        """Take a picture of the whole page at a width, in light or dark colours."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **screen)
        height = self.run("document.documentElement.scrollHeight")
        self.call("Emulation.setDeviceMetricsOverride", **(screen | {"height": height}))
        picture = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def driven(profile: Path) -> Iterator[Tab]:
    """A browser with a profile of its own and one page, which ends with the block."""
    (profile / _PORT_FILE).unlink(missing_ok=True)
    command = [chromium(), *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        [*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with connect(_page_address(profile), max_size=None) as socket:
            yield Tab(socket)
    finally:
        process.kill()
        process.wait()


def _page_address(profile: Path) -> str:
    """The DevTools address of the browser's first page, once the browser is there."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            port, browser = (profile / _PORT_FILE).read_text().splitlines()
            with connect(f"ws://127.0.0.1:{port}{browser}") as socket:
                socket.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
                targets = json.loads(socket.recv(timeout=SECONDS))["result"]["targetInfos"]
                page = next(one["targetId"] for one in targets if one["type"] == "page")
                return f"ws://127.0.0.1:{port}/devtools/page/{page}"
        except (OSError, ValueError, StopIteration):
            time.sleep(0.1)
    raise AssertionError("the browser does not begin")
