"""A private run of boards and browsers, and an owner who limits ε: real processes on loopback.

Every report is clipped, has noise of its own and lies under masks (`privacy.mode = "distributed"`
with secure aggregation), so the server sees sums alone. The last browser's owner enters a limit on
the page that half of the rounds fit; it refuses the others, which go on with everybody else. Needs
Chromium, the built page (`make phone-page`), and the extras phone, onnx and web. Prints as JSON
the privacy that each page shows beside a board's count, and where everybody stands. Each figure is
proven: a page's round and digest are a state of the server's ledger and, in the same round, a
board's, and `samara server check --replay` reproduces every digest.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from driven_browser import Tab, driven, find_chromium

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address, free_port
from benchmarks.scale.mixed_run import GATEWAY, MODEL, OPEN, TASK, samara
from samara.client.limits.privacy_budget import OWN_DELTA, ChargeLog, epsilon_spent
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.privacy.accountant import epsilon_of
from samara.shared.settings.setting import Scalar
from samara.shared.tasks.embedded import MESSAGES_PER_WRITER
from samara.shared.tasks.messages import messages, writers

SETTINGS: dict[str, Scalar] = {
    "steps": 2,
    "queries": 16,
    "batch": 32,
    "evaluate.every": 0,
    "evaluate.best": False,
    "cohort.timeout": 3600.0,
    "method": "global",
    "personal.rounds": 0,
    "learning-rate": 0.1,
    "seed-policy": "shared",
    "aggregation.rule": "mean",
    "privacy.mode": "distributed",
    "privacy.noise-multiplier": 1.0,
    "privacy.honest-share": 0.7,
    "privacy.secure-aggregation": True,
}
SECONDS = 900.0
ENTER = """(() => {{
  const field = document.getElementById("limit");
  field.value = "{limit}";
  field.dispatchEvent(new Event("change"));
}})()"""
"""Script that does what a keyboard does in the field of the limit."""
SHOWN = "document.getElementById('{}').innerText"


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


class BrowserRun:
    """A run with its gateway and browsers.

    Args:
        live: server and processes.
        browsers: names of the browsers.
        stack: ends the browsers.
    """

    def __init__(self, live: LiveRun, browsers: list[str], stack: ExitStack) -> None:
        self.live, self.browsers, self._stack = live, browsers, stack
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
        """Open an invitation's link, agree, join, and give the page the messages."""
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
        tab.give_file("file", "messages.jsonl", rows_of(live.folder, name))
        tab.until("document.getElementById('add-said').textContent", SECONDS)


@contextmanager
def started(
    folder: Path, settings: dict[str, Scalar], counts: tuple[int, int]
) -> Iterator[BrowserRun]:
    """A run whose boards and browsers have all begun.

    Args:
        folder: of everything; short, as sockets lie in it.
        settings: of the run beside `SETTINGS`.
        counts: number of boards and of browsers.
    """
    boards, browsers = (
        [f"{kind}-{number}" for number in range(count)]
        for kind, count in zip(("board", "browser"), counts, strict=True)
    )
    write_messages(folder, [*boards, *browsers])
    own = {**SETTINGS, "cohort.available": sum(counts), **settings}
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    shape = ("--batch", "16", "--seq", "32", "--model", MODEL, "--task", TASK)
    shape += ("--set", "differences=central")
    samara(folder, "phone", "export", "--runtime", "onnx", *shape, "--out", "page.onnx")
    names = [*boards, GATEWAY]
    with ExitStack() as stack, LiveRun(folder, own, names, free_address()) as live:
        run = BrowserRun(live, browsers, stack)
        live.start_server()
        live.wait(lambda: live.said().count("may join") > len(boards), "the server")
        run.start_gateway()
        for name in browsers:
            run.join(name)
        for name in boards:
            what = ("--model", MODEL, "--data", f"data-{name}", "--task", TASK)
            live.start_client(name, None, *what, "--set", "threads=1")
        yield run


def at_the_end(run: BrowserRun) -> dict[str, Any]:
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


def limit_half(run: BrowserRun, board: str) -> float:
    """Enter a limit on the last browser's page that half of the rounds fit; returns it."""
    live = run.live
    live.wait_for_round(1, SECONDS)
    (rho,) = {charge.rho for charge in ChargeLog(live.home(board)).read()}
    rounds = live.settings["rounds"]
    assert isinstance(rounds, int)
    limit = float(f"{1.001 * epsilon_of(rounds // 2 * rho, OWN_DELTA):.6g}")
    run.tabs[run.browsers[-1]].run(ENTER.format(limit=limit))
    return limit


def stopped(run: BrowserRun) -> str:
    """Return what the last browser's page shows once its limit is reached."""
    tab = run.tabs[run.browsers[-1]]
    return str(tab.until(f"{SHOWN.format('stopped')}.trim()", SECONDS))


def ended(run: BrowserRun, board: str) -> dict[str, Any]:
    """Wait for the end; returns what pages and a board say, whose states must be the ledger's.

    Raises:
        AssertionError: if one is not.
    """
    live, status = run.live, at_the_end(run)
    live.check()
    digests, (reached, digest) = live.digests(), live.positions()[board]
    for name, one in status.items():
        assert digests[one["round"]] == one["digest"], f"{name} stands elsewhere"
        if one["round"] == reached:
            assert one["digest"] == digest, f"{name} stands elsewhere than {board}"
    assert "every digest reproduced" in samara(
        live.folder, "server", "check", "--replay", str(live.run)
    )
    releases = read_releases(live.run / RELEASES_FILE)
    return {
        "reports in each round's sum": [one.sums[0].clients for one in releases],
        board: {
            "round": reached,
            "digest": digest,
            "epsilon": epsilon_spent(ChargeLog(live.home(board)).read()),
        },
        "browsers": {
            name: {
                "round": one["round"],
                "digest": one["digest"],
                "epsilon": one["sent"]["epsilon"],
                "reports": one["sent"]["answers"],
                "shows": run.tabs[name].run(SHOWN.format("noised")),
            }
            for name, one in status.items()
        },
    }


def measure(folder: Path, rounds: int, boards: int, browsers: int) -> dict[str, Any]:
    """Run, and return the figures."""
    settings: dict[str, Scalar] = {"rounds": rounds, "cohort.minimum": boards + browsers - 1}
    with started(folder, settings, (boards, browsers)) as run:
        limit = limit_half(run, "board-0")
        said = stopped(run)
        return {"limit": limit, "the page with it": said} | ended(run, "board-0")
