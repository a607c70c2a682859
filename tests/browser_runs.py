"""A live run of boards and browsers: real processes on loopback, over TLS.

Needs Chromium, the built page (`make phone-page`), and the extras phone, onnx and web.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from driven_browser import Tab, driven, find_chromium

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address, free_port
from benchmarks.scale.mixed_run import GATEWAY, MODEL, OPEN, TASK, samara
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.settings.setting import Scalar
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER
from samara.shared.tasks.messages import messages, writers

SECONDS = 900.0
SPLITS = ("train", "validation", "test")


def write_messages(folder: Path, names: list[str]) -> None:
    """Write training, validation and test messages of a writer for each participant."""
    for name, writer in zip(names, writers(len(names), 0), strict=True):
        (folder / f"data-{name}").mkdir(exist_ok=True)
        for split, count in MESSAGES_PER_WRITER.items():
            rows = [json.dumps(row) + "\n" for row in messages(writer, count, split, 0)]
            (folder / f"data-{name}" / f"{split}.jsonl").write_text("".join(rows))


def rows_of(folder: Path, name: str) -> str:
    """Return a participant's rows as lines with their split, in the form that the page reads."""
    lines = [
        json.dumps(json.loads(line) | {"split": split})
        for split in SPLITS
        for line in (folder / f"data-{name}" / f"{split}.jsonl").read_text().splitlines()
    ]
    return "\n".join(lines)


class Work(NamedTuple):
    """The clients' training: a model, a task, and functions that make its program and the rows.

    Attributes:
        export: options of `samara phone export`.
        write: function that writes a folder `data-NAME` of rows for each name.
    """

    model: str
    task: str
    export: tuple[str, ...]
    write: Callable[[Path, list[str]], None]


_SHAPE = ("--batch", "16", "--seq", "32", "--set", "differences=central")
MESSAGES = Work(MODEL, TASK, _SHAPE, write_messages)


class BrowserRun:
    """A run with its gateway and browsers.

    Args:
        live: server and processes.
        boards: names of the boards.
        browsers: names of the browsers.
        work: the clients' training. stack: ends the browsers.
    """

    def __init__(
        self,
        live: LiveRun,
        boards: list[str],
        browsers: list[str],
        work: Work,
        stack: ExitStack,
    ) -> None:
        self.live, self.boards, self.browsers = live, boards, browsers
        self._work, self._stack = work, stack
        self._web = f"127.0.0.1:{free_port()}"
        self.tabs: dict[str, Tab] = {}

    def start_gateway(self) -> None:
        """Start the gateway, and wait until phones can attach."""
        live, proof = self.live, self.live.run / "certificates"
        of_server = ("--superlink", live.address, "--certs", str(proof / "ca.pem"))
        own = ("--key", str(live.key(GATEWAY)), "--home", str(live.home(GATEWAY)))
        tls = ("--cert", str(proof / "server.pem"), "--cert-key", str(proof / "server.key"))
        web = ("--listen", free_address(), "--web", self._web, "--program", "page.onnx", *tls)
        live.start(GATEWAY, ["gateway", "up", *of_server, *own, *web])
        live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")

    def join(self, name: str) -> None:
        """Open an invitation's link, agree and join, and wait until the page knows the task."""
        live, origin, browser = self.live, f"https://{self._web}", find_chromium()
        assert browser, "needs Chromium on the PATH"
        of_run = ("--run", str(live.run), "--page", origin)
        said = samara(live.folder, "server", "invite", name, *of_run)
        profile = live.folder / f"profile-{name}"
        tab = self._stack.enter_context(driven(browser, profile, trusts_all=True))
        self.tabs[name] = tab
        tab.open(next(word for word in said.split() if word.startswith(f"{origin}/#join=")))
        tab.until("!document.getElementById('joining').hidden")
        tab.run("document.getElementById('consent').click()")
        tab.run("document.querySelector('#join button').click()")
        tab.until("samara.status().then((now) => now.task !== null)", SECONDS)

    def give_rows(self, name: str) -> None:
        """Give the page its rows."""
        self.tabs[name].give_file("file", "rows.jsonl", rows_of(self.live.folder, name))
        self.tabs[name].until("document.getElementById('add-said').textContent", SECONDS)

    def start_boards(self) -> None:
        """Start every board."""
        for name in self.boards:
            what = ("--model", self._work.model, "--task", self._work.task)
            self.live.start_client(
                name, None, *what, "--data", f"data-{name}", "--set", "threads=1"
            )


@contextmanager
def started(
    folder: Path, settings: dict[str, Scalar], counts: tuple[int, int], work: Work = MESSAGES
) -> Iterator[BrowserRun]:
    """A run whose server and gateway have begun, and which waits for boards and browsers.

    Args:
        folder: folder of all files; its path must be short, because sockets lie in it.
        settings: settings of the run.
        counts: number of boards and of browsers.
        work: the clients' training.
    """
    boards, browsers = (
        [f"{kind}-{number}" for number in range(count)]
        for kind, count in zip(("board", "browser"), counts, strict=True)
    )
    work.write(folder, [*boards, *browsers])
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    of_program = ("--runtime", "onnx", "--model", work.model, "--task", work.task, *work.export)
    samara(folder, "phone", "export", *of_program, "--out", "page.onnx")
    own = {"cohort.available": sum(counts), **settings}
    names = [*boards, GATEWAY]
    with ExitStack() as stack, LiveRun(folder, own, names, free_address()) as live:
        run = BrowserRun(live, boards, browsers, work, stack)
        live.serve()
        run.start_gateway()
        yield run


def at_the_end(run: BrowserRun) -> dict[str, Any]:
    """Wait for the end of the run; return the final status of each browser.

    Raises:
        AssertionError: if the server failed.
    """
    live, server = run.live, run.live.server
    assert server is not None, "it was started"
    live.wait(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0, live.said()[-2000:]
    is_over = "samara.status().then((now) => now.connection === 'finished' && now)"
    return {name: run.tabs[name].until(is_over, SECONDS) for name in run.browsers}
