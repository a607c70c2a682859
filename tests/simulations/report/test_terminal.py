"""The report of a finished run on the terminal."""

from pathlib import Path

import pytest
from results import result_of, write_result

from samara.shared.results.result import RunResult
from samara.simulations.report.terminal import print_result


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ([], "all digests agree"),
        (["3", "3"], "1 client refused to evaluate"),
        (["3", "5", "3"], "2 clients refused to evaluate"),
    ],
)
def test_a_client_that_refuses_several_evaluations_is_counted_once(
    refused: list[str],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = result_of(clients=6)
    for evaluation, client in zip(content["evaluations"], refused, strict=False):
        evaluation["refused"] = {client: "no"}
    folder = write_result(tmp_path / "run", content)
    print_result(folder, RunResult.read(folder))
    assert words in capsys.readouterr().out


def test_the_verdict_is_about_the_best_other_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = result_of(clients=4)
    columns = content["evaluations"][-1]["columns"]
    columns["zero-shot"], columns["personalized"] = columns["personalized"], columns["zero-shot"]
    folder = write_result(tmp_path / "run", content)
    print_result(folder, RunResult.read(folder))
    printed = " ".join(capsys.readouterr().out.split())
    assert "points below zero-shot, the best other column (95 % interval −" in printed
    assert "over clients): 0 of 4 clients gain, 4 lose" in printed
    assert "Try evaluate.best = true" in printed
    assert "aggregation.rule = mean (if labels differ and no client may be hostile)" in printed
    assert "base rate: always the client's most frequent label" in printed


def test_settings_that_a_run_chose_take_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = result_of(clients=4)
    content["automatic"] = {"rounds": "the reason for it", "adapter.layers": "another reason"}
    folder = write_result(tmp_path / "run", content)
    print_result(folder, RunResult.read(folder))
    printed = " ".join(capsys.readouterr().out.split())
    assert "chosen by default: rounds = 20, adapter.layers = top:1; reasons: result.json" in printed
    assert "the reason for it" not in printed
    assert "another reason" not in printed


def test_a_run_that_validation_shows_no_gain_of_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_result(tmp_path / "run", result_of() | {"no_gain": "validation shows no gain."})
    print_result(folder, RunResult.read(folder))
    assert "validation shows no gain." in capsys.readouterr().out


def test_a_run_ends_with_its_bytes_beside_those_of_fed_avg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = result_of()
    content["scalar_ratios"]["mean"] = 80.0
    folder = write_result(tmp_path / "run", content)
    print_result(folder, RunResult.read(folder))
    printed = capsys.readouterr().out
    *others, _ = printed.splitlines()  # the last is a path
    assert max(map(len, others)) <= 80
    lines = {line[:10].strip(): line.split() for line in printed.splitlines()}
    assert lines["payload"][1:] == ["160", "1,561", "38,400", "374,640"]
    assert lines["FedAvg, sa"][-4:] == ["6,144", "6,144", "1,474,560", "1,474,560"]
    words = " ".join(printed.split())
    assert "scalars (measured numbers) that a client sent, per trained number: 80;" in words
    assert "the server can compute the mean gradient of a client's examples" in words
