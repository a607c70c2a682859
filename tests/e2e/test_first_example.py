"""The guide's first example: writers gain from each other, and a text gets a clear answer."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ROOT

from samara.shared.results.result import read_result

Run = Callable[..., tuple[int, str, str]]


@pytest.mark.exhaustive
def test_the_first_example_gets_better_with_every_model(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^samara (adapter apply .*)$", page, re.MULTILINE)
    command = shlex.split(line)
    assert command[3] == "what a lovely day"
    assert run("demo", "--out", command[2])[0] == 0
    columns = read_result(Path(command[2]))["evaluations"][-1]["columns"]
    accuracies = {name: column["mean_client_accuracy"] for name, column in columns.items()}
    own_models = accuracies.pop("personalized")
    assert own_models > max(accuracies.values()) > accuracies["zero-shot"] + 0.1
    status, printed, _ = run(*command)
    assert status == 0
    (loved,) = re.findall(r"^loved(.*)$", printed, re.MULTILINE)
    base, common, own = (float(share) for share in re.findall(r"([\d.]+)%", loved))
    assert base < 50 < common < own
    stated = re.search(r"\*loved\* are\s+(\d+), (\d+) and (\d+) %", page)
    assert stated is not None
    assert [round(share) for share in (base, common, own)] == [
        int(share) for share in stated.groups()
    ]
