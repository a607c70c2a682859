"""A real headless browser that a script drives by the DevTools protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from samara.simulations.rehearsal.processes import kill_family

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
SECONDS = 60.0
_POLL_SECONDS = 0.05
_STATUS = """Promise.race([
  window.samara?.status(), new Promise((done) => setTimeout(() => done("no answer"), 5000)),
])"""


def find_chromium() -> str | None:
    """Return the program; None if there is none on the PATH."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


class Tab:
    """A page of a driven browser.

    Args:
        socket: DevTools connection of the page.

    Attributes:
        said: the page's console output, and its errors.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.said: list[str] = []
        self.call("Runtime.enable")
        self.call("Page.enable")

    def call(self, method: str, **given: Any) -> Any:
        """Return the result of a DevTools method.

        Raises:
            RuntimeError: if the browser refuses it.
        """
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": given}))
        while True:
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("id") != number:
                self._note(message)
            elif "error" in message:
                raise RuntimeError(f"{method}: {message['error']}")
            else:
                return message["result"]

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """Return the value of an expression of the page, awaited.

        Raises:
            RuntimeError: if the expression throws an error.
        """
        result = self._evaluate(script)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script: str, seconds: float = SECONDS) -> Any:
        """Return the value of an expression as soon as the value is true in JavaScript.

        Raises:
            TimeoutError: if the value does not become true.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            result = self._evaluate(script)
            if "exceptionDetails" not in result and result["result"].get("value"):
                return result["result"]["value"]
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"{script} did not become true")

    def give_file(self, field: str, name: str, content: str) -> None:
        """Choose a file in a field of the page, by its id."""
        made = f"new File([{json.dumps(content)}], {json.dumps(name)})"
        self.run(
            f"(() => {{ const given = new DataTransfer(); given.items.add({made});"
            f"const field = document.getElementById({json.dumps(field)});"
            "field.files = given.files; field.dispatchEvent(new Event('change')); })()"
        )

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

    def _evaluate(self, script: str) -> Any:
        """Return the value of an expression, or details of an exception, as DevTools does."""
        try:
            return self._evaluate_now(script)
        except RuntimeError as error:  # the page is about to be another one
            return {"exceptionDetails": str(error)}

    def _evaluate_now(self, script: str) -> Any:
        given = {"expression": script, "awaitPromise": True, "returnByValue": True}
        return self.call("Runtime.evaluate", **given)

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.consoleAPICalled":
            arguments = message["params"]["args"]
            self.said += [str(one.get("value", one.get("description"))) for one in arguments]
        elif message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description", details["text"]))


@contextmanager
def driven(browser: str, profile: Path, *flags: str, trusts_all: bool = False) -> Iterator[Tab]:
    """A browser with one page, which is killed at the end of the block.

    Args:
        browser: program of Chromium.
        profile: folder of the browser's data, which a later browser with the same folder continues
            to use.
        flags: additional options.
        trusts_all: whether it accepts certificates that no public authority has signed.
    """
    own = ["--remote-debugging-port=0", f"--user-data-dir={profile}", *flags, "about:blank"]
    trust = ["--ignore-certificate-errors"] if trusts_all else []
    command = [browser, *FLAGS, *trust, *own]
    port_file = profile / "DevToolsActivePort"
    with (
        started_browser(command, port_file, _page_address) as socket,
        telling(Tab(socket)) as tab,
    ):
        yield tab


@contextmanager
def telling(tab: Tab) -> Iterator[Tab]:
    """Yield a tab; an error in the block gets a note with the page's output and status."""
    try:
        yield tab
    except Exception as error:
        with suppress(Exception):  # the browser may be what has failed
            error.add_note(f"the page's status: {tab.run(_STATUS)}")
        error.add_note(f"the page said: {tab.said[-9:]}")
        raise


def _page_address(told: str) -> str:
    """Return the DevTools address of a browser's first page, from the port file's content."""
    port, browser = told.splitlines()
    with connect(f"ws://127.0.0.1:{port}{browser}") as socket:
        socket.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
        targets = json.loads(socket.recv(timeout=SECONDS))["result"]["targetInfos"]
    page = next(one["targetId"] for one in targets if one["type"] == "page")
    return f"ws://127.0.0.1:{port}/devtools/page/{page}"


@contextmanager
def started_browser(
    command: Sequence[str], port_file: Path, address_in: Callable[[str], str]
) -> Iterator[ClientConnection]:
    """Yield the connection that drives a browser, and kill the browser at the end of the block.

    All its processes have then ended, so another browser can use the profile.

    Args:
        command: its program and options.
        port_file: file in its profile that contains the address for driving it.
        address_in: function that gives the address from the file's content, or fails as long as
            the browser is not ready.

    Raises:
        TimeoutError: if the browser does not begin.
    """
    port_file.unlink(missing_ok=True)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        address = _address(port_file, address_in)
        with connect(address, max_size=None, ping_interval=None, open_timeout=SECONDS) as socket:
            yield socket
    finally:
        kill_family(process)


def _address(port_file: Path, address_in: Callable[[str], str]) -> str:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            return address_in(port_file.read_text())
        except (OSError, ValueError, KeyError, StopIteration):
            time.sleep(_POLL_SECONDS)
    raise TimeoutError("the browser does not begin")
