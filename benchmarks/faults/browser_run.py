"""A run of boards, reference phones and browsers, which are disturbed: real processes on loopback.

    python -m benchmarks.faults.browser_run [--rounds 20] [--boards 2] [--phones 2] [--browsers 3]
        [--model MODEL] [--firefox] [--folder DIR]

Needs Chromium, the built page (`make phone-page`), and the extras phone, onnx and web. The model is
the embedded one unless another is given, and each takes part with the messages of a writer of its
own. Every browser is a process of its own that joins by a link over TLS, the first one over a link
that can be cut; with --firefox that is Firefox. While the rounds go on the first browser's page is
loaded again, the last one's process is killed and started anew, the first one's network is cut for
20 s, and the gateway's process is killed (-9) and started anew. Prints as JSON where everybody
stands in the end, and the accuracies that each page shows. Each figure is proven: the run ends,
`samara server check --replay` reproduces every digest, and round and digest of every browser are
the server's.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.driven_browser import Tab, driven, find_chromium
from benchmarks.driven_firefox import driven_firefox, find_firefox
from benchmarks.faults.cut_link import cut_link
from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address, free_port
from benchmarks.scale.mixed_run import GATEWAY, MODEL, OPEN, TASK, samara
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.shared.settings import Scalar
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER
from samara.shared.tasks.messages import messages, writers

SETTINGS: dict[str, Scalar] = {
    "steps": 2,
    "queries": 16,
    "batch": 32,
    "personal.rounds": 5,
    "evaluate.every": 0,
    "evaluate.best": False,
    "cohort.timeout": 3600.0,
}
SECONDS = 900.0
CUT_SECONDS = 20.0
"""The time for which a browser's network is cut."""


def write_messages(folder: Path, names: list[str]) -> None:
    """Write training, validation and test messages of a writer for each participant."""
    for name, writer in zip(names, writers(len(names), 0), strict=True):
        (folder / f"data-{name}").mkdir(exist_ok=True)
        for split, count in MESSAGES_PER_WRITER.items():
            rows = [json.dumps(row) + "\n" for row in messages(writer, count, split, 0)]
            (folder / f"data-{name}" / f"{split}.jsonl").write_text("".join(rows))


def rows_of(folder: Path, name: str) -> str:
    """Return a participant's messages as lines that name their split, as the page takes them."""
    lines = [
        json.dumps(json.loads(line) | {"split": split})
        for split in MESSAGES_PER_WRITER
        for line in (folder / f"data-{name}" / f"{split}.jsonl").read_text().splitlines()
    ]
    return "\n".join(lines)


class Disturbed:
    """The run with its gateway, phones and browsers.

    Args:
        live: server and processes.
        browsers: names of the browsers.
        stack: ends the browsers.
        model: model that all of them have.
        firefox: name of the browser that is Firefox, if one is.

    Attributes:
        link: link of the first browser.
    """

    def __init__(
        self, live: LiveRun, browsers: list[str], stack: ExitStack, model: str, firefox: str = ""
    ) -> None:
        self.live, self.browsers, self._stack, self._model = live, browsers, stack, model
        self._firefox = firefox
        self._door, web = free_address(), free_port()
        self._web = f"127.0.0.1:{web}"
        self.link = stack.enter_context(cut_link("127.0.0.1", web))
        self._open: dict[str, ExitStack] = {}
        self.tabs: dict[str, Tab] = {}

    def start_gateway(self) -> None:
        """Start the gateway, or start it again, and wait until phones can attach."""
        live, before = self.live, 0
        if (live.folder / f"{GATEWAY}.said").exists():
            before = live.said(GATEWAY).count(OPEN)
        of_server = ("--superlink", live.address, "--certs", str(self._authority))
        own = ("--key", str(live.key(GATEWAY)), "--home", str(live.home(GATEWAY)))
        proof = live.run / "certificates"
        tls = ("--cert", str(proof / "server.pem"), "--cert-key", str(proof / "server.key"))
        web = ("--web", self._web, "--program", "page.onnx", *tls)
        live.start(GATEWAY, ["gateway", "up", *of_server, "--listen", self._door, *own, *web])
        live.wait(lambda: live.said(GATEWAY).count(OPEN) > before, "the gateway")

    @property
    def _authority(self) -> Path:
        return self.live.run / "certificates" / "ca.pem"

    def origin(self, name: str) -> str:
        """Return the origin at which a browser finds the page."""
        return f"https://{self.link.address if name == self.browsers[0] else self._web}"

    def open(self, name: str) -> Tab:
        """Start a browser, or start it again with what it kept."""
        is_firefox = name == self._firefox
        browser, drive = (
            (find_firefox(), driven_firefox) if is_firefox else (find_chromium(), driven)
        )
        assert browser, "needs Chromium, or with --firefox Firefox, on the PATH"
        stack, profile = ExitStack(), self.live.folder / f"profile-{name}"
        tab = stack.enter_context(drive(browser, profile, trusts_all=True))
        self._stack.push(stack)
        self._open[name], self.tabs[name] = stack, tab
        return tab

    def kill(self, name: str) -> None:
        """Kill a browser's process."""
        self._open.pop(name).close()

    def join(self, name: str) -> None:
        """Open an invitation's link, agree, join, and give the page the messages."""
        run, origin = str(self.live.run), self.origin(name)
        said = samara(self.live.folder, "server", "invite", name, "--run", run, "--page", origin)
        link = next(word for word in said.split() if word.startswith(f"{origin}/#join="))
        tab = self.open(name)
        tab.open(link)
        tab.until("!document.getElementById('joining').hidden")
        tab.run("document.getElementById('consent').click()")
        tab.run("document.querySelector('#join button').click()")
        tab.until("samara.status().then((now) => now.task !== null)", SECONDS)
        tab.give_file("file", "messages.jsonl", rows_of(self.live.folder, name))
        tab.until("document.getElementById('add-said').textContent", SECONDS)

    def start_phone(self, name: str) -> None:
        """Make program, rows and key of a reference phone, and start it."""
        folder, live = self.live.folder, self.live
        rows = ("--data", f"data-{name}", "--program", "phone.pte", "--out", f"{name}.jsonl")
        samara(folder, "phone", "rows", "--model", self._model, "--task", TASK, *rows)
        (folder / f"{name}.pem").write_text(samara(folder, "phone", "key", f"{name}.key"))
        samara(folder, "server", "keys", "create", name, f"{name}.pem", "--run", str(live.run))
        of_gateway = ("--gateway", self._door, "--certs", str(self._authority))
        own = ("--program", "phone.pte", "--rows", f"{name}.jsonl", "--key", f"{name}.key")
        live.start(name, ["phone", "up", *of_gateway, *own, "--home", str(live.home(name))])
        live.names.append(name)


@contextmanager
def started(
    folder: Path,
    settings: Mapping[str, Scalar],
    counts: tuple[int, int, int],
    model: str = MODEL,
    firefox: bool = False,
) -> Iterator[Disturbed]:
    """A run whose boards, phones and browsers have all begun.

    Args:
        folder: of everything; short, as sockets lie in it.
        settings: of the run beside `SETTINGS`.
        counts: number of boards, phones and browsers.
        model: model that all of them have.
        firefox: whether the first browser is Firefox.
    """
    kinds = ("board", "phone", "browser")
    boards, phones, browsers = (
        [f"{kind}-{number}" for number in range(count)]
        for kind, count in zip(kinds, counts, strict=True)
    )
    write_messages(folder, [*boards, *phones, *browsers])
    own = {**SETTINGS, "cohort.available": sum(counts), **settings}
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    address = free_address()
    shape = ("--batch", "16", "--seq", "32", "--model", model, "--task", TASK)
    samara(folder, "phone", "export", "--runtime", "onnx", *shape, "--out", "page.onnx")
    if phones:
        samara(folder, "phone", "export", *shape, "--out", "phone.pte")
    with ExitStack() as stack, LiveRun(folder, own, [*boards, GATEWAY], address) as live:
        run = Disturbed(live, browsers, stack, model, browsers[0] if firefox else "")
        live.start_server()
        live.wait(lambda: live.said().count("may join") > len(boards), "the server")
        run.start_gateway()
        for name in browsers:
            run.join(name)
        for name in phones:
            run.start_phone(name)
        for name in boards:
            what = ("--model", model, "--data", f"data-{name}", "--task", TASK)
            live.start_client(name, None, *what, "--set", "threads=1")
        yield run


def disturb(run: Disturbed, rounds: int) -> dict[str, Any]:
    """Disturb browsers and gateway in the middle of the run; returns after which rounds."""
    live, after = run.live, dict[str, Any]()

    def at(share: float, what: str) -> None:
        live.wait_for_round(max(1, int(rounds * share)))
        after[what] = live.last()

    at(0.2, "page loaded again")
    first, last = run.browsers[0], run.browsers[-1]
    run.tabs[first].open(run.origin(first))
    at(0.4, "browser killed")
    run.kill(last)
    run.open(last).open(run.origin(last))
    at(0.55, "network cut")
    run.link.cut()
    time.sleep(CUT_SECONDS)
    run.link.mend()
    at(0.7, "gateway killed")
    live.clients[GATEWAY].kill()
    live.clients[GATEWAY].wait()
    run.start_gateway()
    return after


def at_the_end(run: Disturbed) -> dict[str, Any]:
    """Wait for the end of the run; returns each browser's status then.

    Raises:
        AssertionError: if the server failed.
    """
    live, server = run.live, run.live.server
    assert server is not None, "it was started"
    live.wait(lambda: server.poll() is not None, "the end of the run")
    assert server.returncode == 0, live.said()[-2000:]
    is_over = "samara.status().then((now) => now.connection === 'finished' && now)"
    return {name: run.tabs[name].until(is_over, SECONDS) for name in run.browsers}


def ended(run: Disturbed) -> dict[str, Any]:
    """Wait for the end; returns where everybody stands, which must be one state.

    Raises:
        AssertionError: if it is not.
    """
    live, status = run.live, at_the_end(run)
    rounds = live.check()
    digest = live.digests()[rounds]
    for name, one in status.items():
        assert (one["round"], one["digest"]) == (rounds, digest), f"{name} stands elsewhere"
    assert "every digest reproduced" in samara(
        live.folder, "server", "check", "--replay", str(live.run)
    )
    return {
        "rounds": rounds,
        "digest": digest,
        "boards and phones": {name: where[0] for name, where in live.positions().items()},
        "browsers": {name: one["accuracies"] for name, one in status.items()},
        "sent by browsers": {name: one["sent"] for name, one in status.items()},
    }


def measure(
    folder: Path,
    rounds: int,
    counts: tuple[int, int, int],
    model: str = MODEL,
    firefox: bool = False,
) -> dict[str, Any]:
    """Run and disturb; returns the figures."""
    with started(folder, {"rounds": rounds}, counts, model, firefox) as run:
        run.live.wait_for_round(1, SECONDS)
        return {"after round": disturb(run, rounds)} | ended(run)


def main(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 20,
    boards: Annotated[int, typer.Option(help="Boards.")] = 2,
    phones: Annotated[int, typer.Option(help="Reference phones on ExecuTorch.")] = 2,
    browsers: Annotated[int, typer.Option(help="Browsers, at least one.")] = 3,
    model: Annotated[str, typer.Option(help="Model folder.")] = MODEL,
    firefox: Annotated[bool, typer.Option("--firefox", help="The first is Firefox.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Folder that stays; short.")] = None,
) -> None:
    """Print the figures."""
    with ExitStack() as stack:
        used = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="b")))
        used.mkdir(parents=True, exist_ok=True)
        print(
            json.dumps(measure(used, rounds, (boards, phones, browsers), model, firefox), indent=1)
        )


if __name__ == "__main__":
    typer.run(main)
