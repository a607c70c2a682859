"""Own words with a real language model: a simulated run, its page, and an export."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from live import QUIET

from samara.client.personal.own_words import OWN_WORDS_FILE, OwnWordsFile
from samara.shared.results.result import RunResult
from samara.simulations.comparison.columns import client_columns

MODEL = ROOT.parent / "shared" / "models" / "movie-llama-12m"
SECONDS = 600
HABITS = {
    "ann": ("Kind regards from the harbour, yours, Ann", "Dear friends of the lighthouse,"),
    "bob": ("cheers mate, see you at the shed, bob", "alright lads, quick one:"),
}
MATTERS = ("the meeting", "our dinner", "the film", "her ticket", "that parcel", "the garden")
pytestmark = pytest.mark.slow


def samara(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "samara", *arguments],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_people_are_written_like_with_their_own_words(tmp_path: Path) -> None:
    if not MODEL.is_dir():
        pytest.skip("no small model beside the checkout, in shared/models")
    rows = [
        {"user": user, "text": f"{begin} {matter} is moved to day {day}. {end}"}
        for user, (end, begin) in HABITS.items()
        for matter in MATTERS
        for day in range(4)
    ]
    data, run = tmp_path / "texts.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"task": "texts", "data.path": data, "model.path": MODEL, "data.clients": 2}
    given |= {"data.partition": "user", "rounds": 1, "steps": 1, "queries": 2, "batch": 4}
    given |= {"personal.rounds": 1, "personal.own-words": "true", "evaluate.passages": 1}
    given |= {"method": "ditto", "threads": 1, "adapter.layers": "top:1"}
    scenario = tmp_path / "scenario.toml"
    scenario.write_text("")
    settings = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    samara("simulate", str(scenario), *settings, "--out", str(run))
    result = RunResult.read(run)
    columns = client_columns(result)
    for client in range(2):
        personal = columns["personalized"][client].loss
        assert columns["own words"][client].loss < personal / 2
    page = tmp_path / "page.html"
    samara("compare", str(run), "--html", str(page))
    assert "own words" in page.read_text()
    ann = next(client for client, name in result.names.items() if name == "ann")
    out = tmp_path / "peft"
    samara("adapter", "export", str(run), "--client", "ann", "--out", str(out))
    exported = OwnWordsFile(out).read()
    assert exported is not None
    assert exported == OwnWordsFile(run / "clients" / str(ann)).read()
    assert OWN_WORDS_FILE in (out / "README.md").read_text()
