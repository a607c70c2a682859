"""The guides' commands run as written, with small data, a tiny model and few rounds.

Commands that need other machines, a network or hours are in `ELSEWHERE`, each with the reason and
with the test that runs them instead.
"""

import csv
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from documented import FENCED, PAGES, PYTHON_RUN, Command, blocks, command_lines, commands
from helpers import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

import samara.command
from samara.overrides import settings_of

pytestmark = pytest.mark.slow

SMALL = {
    "simulate": (
        *("--set", "rounds=2", "--set", "steps=1", "--set", "queries=2", "--set", "batch=4"),
        *("--set", "threads=1", "--set", "evaluate.limit=4", "--set", "evaluate.passages=1"),
    ),
    "tune": (
        *("--steps", "2", "--set", "validate-every=2", "--set", "data.train=24"),
        *("--set", "data.validation=8", "--set", "data.test=8", "--set", "threads=1"),
    ),
}
"""Options added to a command so that it takes seconds; the last value of an option counts."""
VERDICTS = "negative", "neutral", "positive"
DATA = re.compile(r"\b(DATA|PUBLIC)$")
RUN = (
    "README.md",
    "docs/start.md",
    "docs/guides/own-data.md",
    "docs/guides/own-model.md",
    "docs/guides/language.md",
    "docs/guides/comparing.md",
    "docs/guides/differential-privacy.md",
    "docs/guides/devices-of-your-own.md",
    "docs/guides/server.md",
    "docs/guides/devices.md",
    "docs/guides/tune.md",
    "docs/guides/papers.md",
    "docs/guides/lsp.md",
    "docs/guides/streaming.md",
    "docs/guides/fleet.md",
    "docs/concepts/basis.md",
    "docs/concepts/profiled-loss.md",
)
"""Pages whose commands are run in their order, in one folder each."""
ELSEWHERE = {
    ("server", "up"): "a live server: tests/e2e/test_live_server.py",
    ("server", "status", "--run"): "of a live server: tests/e2e/test_live_server.py",
    ("server", "backup"): "of a live server: tests/e2e/test_moved_run.py",
    ("server", "restore"): "on another host: tests/e2e/test_moved_run.py",
    ("server", "status", "--watch"): "of a live server: tests/e2e/test_watched_run.py",
    ("server", "invite"): "for a live server: tests/e2e/test_joined_client.py",
    ("client",): "a live client: tests/e2e/test_live_clients.py, test_live_questions.py",
    ("rehearse",): "takes root: tests/e2e/test_rehearsal.py",
    ("device", "calibrate"): "minutes of measuring: tests/devices/hardware/test_calibrate.py",
    ("device", "run"): "takes root: tests/devices/hardware/test_run_command.py",
    ("device", "wheelhouse"): "downloads from package indexes: tests/e2e/test_wheelhouse.py",
    ("simulate", "SCENARIO"): "a scenario of the reader's own",
    ("simulate", "mixed-200"): "minutes of 200 devices: tests/simulations/fleet/test_run.py",
    ("compare", "runs/mixed"): "what that run leaves",
    ("server", "status", "--rounds", "runs/field"): "what a live run leaves: test_live_server.py",
    ("server", "check", "--replay", "runs/field"): "what a live run leaves: test_live_server.py",
    ("compare", "runs/field"): "what a live run leaves",
    ("adapter", "export", "runs/first", "--client", "anna", "--out", "my-lora"): (
        "a GGUF file of the reader's own: tests/simulations/exports/test_tuned_export_gguf.py"
    ),
}
"""Beginnings of commands that are not run here, with the reason."""
PAGES_ELSEWHERE = {
    "docs/measurements/": "minutes to days of measuring; what was measured is on the page",
    "docs/guides/phone.md": "a run with a phone: tests/e2e/test_documented_phone.py",
    "docs/guides/personal.md": "a sweep, its table, their comparison: a test of its own, below",
}
SMALLER = {
    "demo": ("simulate", "demo.toml"),
    "simulate style": (
        *("simulate", "style", "--set", "data.clients=3", "--set", "personal.rounds=2"),
    ),
}
"""Commands that take long even so, and their replacements."""


def elsewhere(command: Command) -> str:
    """Return the reason why this file does not run a command; empty if it runs it."""
    pages = [why for page, why in PAGES_ELSEWHERE.items() if command.page.startswith(page)]
    words = [why for words, why in ELSEWHERE.items() if command.words[: len(words)] == words]
    return next(iter(pages + words), "")


def whole_commands(page: str) -> list[Command]:
    return [command for command in commands(ROOT / page) if command.whole]


def write_rows(file: Path, names: tuple[str, str, str], labels: tuple[str, ...]) -> None:
    things, words = ("film", "day", "meal", "walk"), ("bad", "fine", "good", "awful", "great")
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        for i in range(240):
            text = f"the {things[i % 4]} was {words[i % 5]} a {things[i // 3 % 4]} {i}"
            writer.writerow((text, labels[i % len(labels)], f"user{i // 3 % 6}"))


def save_with_words(model: Path, words: tuple[str, ...], folder: Path) -> None:
    """Save a model under another path, with additional words in its vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model)
    tokenizer.add_tokens(list(words))
    network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.save_pretrained(folder)
    network.save_pretrained(folder)


@pytest.fixture(scope="module")
def model_with_words(
    model_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model whose vocabulary has the words of the pages' tasks."""
    folder = tmp_path_factory.mktemp("words") / "MODEL"
    save_with_words(model_folder("causal", 2), VERDICTS, folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_with_words: Path) -> Path:
    """A folder with the files that the pages mention, as the current folder."""
    write_rows(tmp_path / "reviews.csv", ("text", "label", "user"), ("0", "1"))
    write_rows(tmp_path / "public.csv", ("text", "label", "user"), ("1", "0"))
    (tmp_path / "public.toml").write_text(
        'name = "public"\ntext = "{text}"\nquestion = " It was {word}."\n'
        'words = ["terrible", "great"]\nlabels = [0, 1]\n'
    )
    write_rows(tmp_path / "shop.csv", ("review", "verdict", "user"), VERDICTS)
    shutil.copytree(model_with_words, tmp_path / "MODEL")
    (tmp_path / "field.toml").write_text("rounds = 2\n")
    (tmp_path / "writing.toml").write_text(
        'task = "texts"\npersonal.rounds = 1\n[data]\nclients = 3\n[adapter]\nlayers = "top:2"\n'
    )
    titles = [
        {"user": f"user{i % 3}", "text": f"it rained on day {i}", "title": "Rain"}
        for i in range(60)
    ]
    (tmp_path / "titles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in titles))
    (tmp_path / "demo.toml").write_text("[data]\nclients = 3\n[personal]\nrounds = 1\n")
    monkeypatch.setattr("samara.simulations.exports.basis_file.TEXTS", 128)
    few = {"train": 24, "validation": 8, "test": 8}
    monkeypatch.setattr("samara.shared.tasks.embedded.MESSAGES_PER_WRITER", few)
    monkeypatch.setattr("samara.shared.tasks.embedded.STYLED_PER_WRITER", few)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in this process and return its exit status."""
    words = tuple(DATA.sub("reviews.csv", word) for word in words)
    words = tuple(re.sub(r"^(personal\.rounds)=\d+$", r"\1=1", word) for word in words)
    for command, smaller in SMALLER.items():
        length = len(command.split())
        if " ".join(words[:length]) == command:
            words = (*smaller, *words[length:])
    monkeypatch.setattr(sys, "argv", ["samara", *words, *SMALL.get(words[0], ())])
    try:
        samara.command.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page_run_as_they_are_written(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    tasks = [match[3] for match in FENCED.finditer(text) if match[2] == "toml"]
    for content in tasks:
        if name := re.search(r'^name = "(\w+)"', content, re.MULTILINE):
            (folder / f"{name[1]}.toml").write_text(content)
    ran = [command for command in whole_commands(page) if not elsewhere(command)]
    assert ran
    for command in ran:
        status = run(command.words, monkeypatch)
        printed = capfd.readouterr()
        assert status == 0, f"{command}\n{printed.out[-800:]}\n{printed.err[-2000:]}"
        assert "Traceback" not in printed.err


@pytest.mark.parametrize("page", [page for page, test in PYTHON_RUN.items() if test in __file__])
def test_python_of_a_page_runs_as_it_is_written(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small: dict[str, Any] = {"rounds": 1, "steps": 1, "queries": 2, "batch": 4, "threads": 1}
    small |= {"data.clients": 4, "evaluate.limit": 4, "personal.rounds": 1}
    simulate = samara.simulate

    def smaller(scenario: Any, **named: Any) -> Any:
        seeds = {"seeds": named.pop("seeds")} if "seeds" in named else {}
        return simulate(scenario, **seeds, **settings_of(named) | small)

    monkeypatch.setattr(samara, "simulate", smaller)
    (folder / "DATA").mkdir()
    (folder / "reviews.csv").rename(folder / "DATA" / "train.csv")
    example = runpy.run_path(str(ROOT / "examples" / "objective_focal.py"))
    names = {"samara": samara, "MODEL": "MODEL", "DATA": "DATA", "focal": example["focal"]}
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [match[3] for match in FENCED.finditer(text) if match[2] == "python"]
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_a_sweep_its_table_and_their_comparison_run_as_they_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/guides/personal.md").read_text(encoding="utf-8")
    (plan,) = [match[3] for match in FENCED.finditer(text) if match[2] == "toml"]
    (folder / "SWEEP.toml").write_text(re.sub(r"(trials|rungs) = \d+", r"\1 = 1", plan))
    (folder / "demo.toml").rename(folder / "SCENARIO")
    (block,) = [each for each in blocks(text) if "--sweep" in each]
    lines = list(command_lines(block))
    assert [words[0] for words in lines] == ["samara", "python", "samara"]
    for words in lines:
        if words[0] == "samara":
            named = [sorted(map(str, Path().glob(word))) or [word] for word in words[1:]]
            assert run(tuple(chain.from_iterable(named)), monkeypatch) == 0
        else:
            monkeypatch.setattr(sys, "argv", words[2:])
            runpy.run_module(words[2], run_name="__main__")
    assert len(list(Path("runs/table").iterdir())) >= 4 * 3


def test_every_command_is_run_or_there_is_a_reason() -> None:
    left = [
        command
        for page in PAGES
        if (name := page.relative_to(ROOT).as_posix()) not in RUN
        for command in whole_commands(name)
        if not elsewhere(command)
    ]
    assert [str(command) for command in left] == []


def test_every_reason_is_needed() -> None:
    whole = [c for page in PAGES for c in whole_commands(page.relative_to(ROOT).as_posix())]
    for words in ELSEWHERE:
        assert any(command.words[: len(words)] == words for command in whole), words
