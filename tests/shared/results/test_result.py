"""The schema of result.json: reading, refusals, and the documentation of every key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from pydantic import BaseModel
from results import result_of, write_result

from samara.shared.errors import SamaraError
from samara.shared.results.result import (
    ClientFacts,
    ClientMetrics,
    ClientRound,
    Column,
    Evaluation,
    Fleet,
    FleetDevice,
    FleetJob,
    FleetRound,
    Round,
    RunResult,
    ScalarRatios,
)

PAGE = ROOT / "docs" / "reference" / "result.md"


def test_a_result_is_read_back(tmp_path: Path) -> None:
    written = result_of()
    result = RunResult.read(write_result(tmp_path, written))
    assert result.config == written["config"]
    assert result.clients[3].facts["torch"] == "2.13.0"
    own = result.evaluations[-1].columns["personalized"].clients[3]
    assert (
        own.accuracy
        == written["evaluations"][-1]["columns"]["personalized"]["clients"]["3"]["accuracy"]
    )


def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    written = result_of() | {"energy": 3}
    written["rounds"][0]["energy"] = 3
    assert RunResult.read(write_result(tmp_path, written)).final_round == 20


def test_any_fact_of_a_device_is_let_through(tmp_path: Path) -> None:
    written = result_of()
    written["clients"]["0"]["platform"] = [{"<script>": None}, 1e300]
    assert RunResult.read(write_result(tmp_path, written)).clients[0].facts["platform"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "damaged: it is not a JSON object"),
        ({"schema_version": 3}, "its schema_version is 3, but this version of Samara reads 2"),
        (
            {"run_id": "00", "evaluations": []},
            "this result of an older Samara has no schema_version",
        ),
        ({"zero_shot": {}, "metric": "accuracy"}, "of `samara tune`, not the result"),
        ({"anything": 1}, "foreign, not the result of a federation"),
        ({"schema_version": 2}, r"damaged: \n.*'config': Field required(?s:.*)and \d+ more"),
    ],
)
def test_what_is_no_result_is_told_apart(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match=message):
        RunResult.read(write_result(tmp_path, content))


@pytest.mark.parametrize("text", ["", "{", "\ud800"])
def test_what_is_no_json_is_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(SamaraError, match="damaged"):
        RunResult.read(tmp_path)


def test_no_result_at_all(tmp_path: Path) -> None:
    with pytest.raises(SamaraError, match="has the run ended"):
        RunResult.read(tmp_path)
    with pytest.raises(SamaraError, match="none: does not exist; give the folder of a run"):
        RunResult.read(tmp_path / "none")


@pytest.mark.parametrize("name", ["<script>", "\x1b[31m", "a\nb", "", "x" * 40])
def test_a_column_has_a_plain_name(name: str, tmp_path: Path) -> None:
    written = result_of()
    columns = written["evaluations"][-1]["columns"]
    columns[name] = columns["global"]
    with pytest.raises(SamaraError) as refused:
        RunResult.read(write_result(tmp_path, written))
    assert not re.search(r"[^\n -~’]", str(refused.value).replace("×", ""))


def test_shares_outside_0_to_1_are_damage(tmp_path: Path) -> None:
    written = result_of()
    written["evaluations"][1]["columns"]["global"]["clients"]["2"]["accuracy"] = 1.2
    with pytest.raises(SamaraError, match=r"evaluations.1.columns.global.clients.2.accuracy"):
        RunResult.read(write_result(tmp_path, written))


@pytest.mark.parametrize(
    "part",
    [
        *(
            RunResult,
            ScalarRatios,
            Round,
            ClientRound,
            Evaluation,
            Column,
            ClientMetrics,
            ClientFacts,
        ),
        *(Fleet, FleetRound, FleetJob, FleetDevice),
    ],
)
def test_every_key_is_documented(part: type[BaseModel]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for key in part.model_fields:
        assert f"| `{key}` |" in page, f"docs/reference/result.md lacks {part.__name__}.{key}"


def test_made_up_results_have_the_keys_of_real_ones() -> None:
    known = set(RunResult.model_fields) - {"groups", "fleet"}  # of clusters, of fleets alone
    assert set(json.loads(json.dumps(result_of()))) == known


def test_a_file_in_place_of_a_run_is_named(tmp_path: Path) -> None:
    file = tmp_path / "reviews.csv"
    file.write_text("text,label\n")
    with pytest.raises(
        SamaraError, match=r"reviews\.csv: this is a file; give the folder of a run"
    ):
        RunResult.read(file)
