"""A 4-bit language model on a board and in a browser's page, which reach the same digest.

    PYTHONPATH=.:tests python tests/language_browser.py MODEL TASK DATA TOKENS

MODEL is a causal LM, and TASK is a task with label words. DATA is a folder with the rows in
train.jsonl, validation.jsonl and test.jsonl. TOKENS is the length of the longest prompt. Server and
board have
their default settings: MODEL has a readout after two thirds of its blocks.
Needs Chromium and the built page (`make phone-page`). Prints figures of the page as JSON.
"""

import json
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from browser_runs import SECONDS, SPLITS, Work, at_the_end, started

from benchmarks.scale.mixed_run import samara
from samara.shared.settings.setting import Scalar

ROWS = dict(zip(SPLITS, (70, 30, 100), strict=True))
"""Rows of each participant, by split."""
EXPORT = ("--quantization", "int4", "--batch", "8", "--seq")
STATUS = "samara.status()"
ASK = """void samara.predict({ text: "a film" }).then((answer) => {
  globalThis.answer = answer.base;
})"""
"""Script that loads the model to answer a question."""


def work_of(model: str, task: str, data: Path, export: tuple[str, ...]) -> Work:
    """Return the work of clients, each with its own rows from a folder."""

    def write(folder: Path, names: list[str]) -> None:
        for split, count in ROWS.items():
            with (data / f"{split}.jsonl").open(encoding="utf-8") as lines:
                for name in names:
                    (folder / f"data-{name}").mkdir(exist_ok=True)
                    own = "".join(islice(lines, count))
                    (folder / f"data-{name}" / f"{split}.jsonl").write_text(own)

    return Work(model, task, export, write)


def measure(folder: Path, work: Work, settings: dict[str, Scalar]) -> dict[str, Any]:
    """Run the clients, and return figures of the browser, whose final state must equal the board's.

    Raises:
        AssertionError: if the states differ.
    """
    with started(folder, settings, (1, 1), work) as run:
        (name,), (board,) = run.browsers, run.boards
        run.join(name)
        tab = run.tabs[name]
        costs = {"joined": _costs(folder, name)}
        tab.run(ASK)
        assert sum(tab.until("globalThis.answer", SECONDS)) > 0
        costs["model loaded"] = _costs(folder, name)
        run.give_rows(name)
        tab.until("document.querySelector('#accuracies .bar') !== null", SECONDS)
        before = tab.run(STATUS)
        costs["texts read"] = _costs(folder, name)
        run.start_boards()
        at_the_end(run)
        # private rounds go on after the run
        after = tab.until(
            f"{STATUS}.then((now) => now.activity.name === 'nothing' && now)", SECONDS
        )
        costs["run ended"] = _costs(folder, name)
        tab.show(390, False, folder / "page.png")
        run.live.check()
        assert run.live.positions()[board] == (after["round"], after["digest"])
        said = samara(folder, "server", "check", "--replay", str(run.live.run))
        assert "every digest reproduced" in said
        return {
            "program's bytes": before["programBytes"],
            "before": before["accuracies"],
            "after": after["accuracies"],
            "round": after["round"],
            "shows": tab.run("document.getElementById('round').textContent"),
            "digest": after["digest"],
            "sent": after["sent"],
            "page, processor seconds and largest MiB": costs,
        }


def _costs(folder: Path, name: str) -> tuple[float, int]:
    """Return processor seconds and the largest memory in MiB of the process with the page."""
    profile = f"--user-data-dir={folder / f'profile-{name}'}"
    browser = next(
        one for one in psutil.process_iter(["cmdline"]) if profile in (one.info["cmdline"] or ())
    )
    page = max(browser.children(recursive=True), key=lambda one: one.memory_info().rss)
    peak = Path(f"/proc/{page.pid}/status").read_text().split("VmHWM:")[1].split()[0]
    return round(sum(page.cpu_times()[:2]), 1), int(peak) // 1024


if __name__ == "__main__":
    _, model, task, data, tokens = sys.argv
    with tempfile.TemporaryDirectory(prefix="b") as made:
        work = work_of(model, task, Path(data), (*EXPORT, tokens))
        print(json.dumps(measure(Path(made), work, {"rounds": 10}), indent=1))
