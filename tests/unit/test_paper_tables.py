"""The tables of the papers: every row can be run or predicted, or says why not."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.papers import __main__ as papers
from benchmarks.papers.table import PaperTable, Row, read_table, table_names
from client.tuning.settings import TuneSettings
from shared.errors import ModelError

NEED_A_RATE = {"mezo-8": ["learning-rate=1e-5"]}


def given(table: PaperTable, out: Path, **more: Any) -> argparse.Namespace:
    data = {str(column): "DATA" for column in table.columns} if not table.vary else {}
    options = {"model": "MODEL", "data": data, "out": out, "seeds": [0, 1], "set": [], "row": []}
    return argparse.Namespace(steps=40, first_order_steps=8, **options | more)


@pytest.mark.parametrize("name", table_names())
def test_settings_go_together_and_predictions_are_made(name: str, tmp_path: Path) -> None:
    table = read_table(name)
    arguments = given(table, tmp_path, set=NEED_A_RATE.get(name, []))
    for row in table.rows:
        if row.settings:
            settings = papers.settings_of(row, str(table.columns[0]), 0, arguments)
            assert not settings.trains or settings.steps in (40, 8)
        if row.predict is not None:
            assert all(value > 0 for value in papers.predicted(row.predict, table))
    assert papers.shown(table, {}).row_count == sum(1 if row.settings else 2 for row in table.rows)


def test_the_predicted_table_of_a_board_is_near_the_papers() -> None:
    table = read_table("p-rge-3")
    for row in table.rows:
        assert row.predict is not None
        assert papers.predicted(row.predict, table) == pytest.approx(row.paper, rel=0.1)


def test_means_stand_below_the_papers_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, runs = read_table("mezo-1"), list[TuneSettings]()

    def tune(settings: TuneSettings) -> Path:
        if settings.method == "icl":
            raise ModelError("no causal LM")
        if settings.space == "prefix" and settings.seed == 1:
            raise KeyboardInterrupt
        runs.append(settings)
        return Path(settings.out)

    curve = [{"loss": 0.75}, {"loss": 0.5}]
    result = {"metric": "accuracy", "test": {"accuracy": 0.5}, "seconds": 1.0, "curve": curve}
    monkeypatch.setattr(papers, "tune", tune)
    monkeypatch.setattr(papers, "read_result", lambda folder: result)
    arguments = given(table, tmp_path, data={"sst2": "DATA"}, row=["FT:learning-rate=3e-5"])
    found = papers.measure(table, arguments, Console(quiet=True))
    figures = {"metric": 0.5, "before": 0.75, "loss": 0.5}
    assert found["MeZO"] == {"sst2": [figures, figures]}
    assert found["FT"] == {"sst2": [figures]}  # the second seed was stopped before it
    assert "ICL" not in found
    (tuned,) = (run for run in runs if run.method == "fo-adam" and run.space == "full")
    assert (tuned.learning_rate, tuned.steps) == (3e-5, 8)
    assert len({run.out for run in runs}) == len(runs)
    console = Console(record=True, width=200)
    console.print(papers.shown(table, found))
    text = console.export_text()
    assert "50.0 ± 0.0" in text
    assert "0.750 → 0.500" in text


def test_rows_of_equal_settings_are_one_run(tmp_path: Path) -> None:
    arguments = given(read_table("mezo-1"), tmp_path)
    folders = {
        row.name: papers.settings_of(row, "sst2", 0, arguments).out
        for name in ("mezo-1", "p-rge-1")
        for row in read_table(name).rows
        if row.settings
    }
    assert folders["MeZO"] == folders["ZO-Full, q = 1"]
    assert len(set(folders.values())) == len(folders) - 2
    arguments.row = ["MeZO:epsilon=0.01"]
    (mezo,) = (row for row in read_table("mezo-1").rows if row.name == "MeZO")
    assert papers.settings_of(mezo, "sst2", 0, arguments).out != folders["MeZO"]


def test_a_row_has_one_source() -> None:
    with pytest.raises(ValueError, match="needs one of settings, predict and missing"):
        Row(name="x", paper=[1.0])
    with pytest.raises(ValueError, match="1 numbers, 2 columns"):
        PaperTable(
            title="t",
            model="m",
            columns=["sst2", "rte"],
            rows=[Row(name="x", paper=[1.0], missing="y")],
        )
