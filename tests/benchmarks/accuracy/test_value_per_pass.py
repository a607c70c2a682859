"""The rows and the table of accuracy against passes, by small runs."""

import argparse
from pathlib import Path

from benchmarks.accuracy.cells import measure_cells
from benchmarks.accuracy.rows import Rows
from benchmarks.accuracy.value_per_pass import render_table, run


def test_a_cell_keeps_its_number_of_clients_beside_the_accuracies_of_models(
    tmp_path: Path,
) -> None:
    small = "rounds=1,steps=1,queries=2,batch=4,evaluate.every=0,personal.rounds=1,data.limit=24"
    given = argparse.Namespace(
        data=tmp_path,
        model="embedded",
        out=tmp_path,
        sets=["messages"],
        clients=[2],
        seeds=[0],
        alpha=[float("inf")],
        condition=[f"inside:adapter.layers=top:1,{small}"],
        set=["threads=1"],
    )
    measure_cells(given, run, render_table)
    (row,) = Rows(tmp_path / "rows.jsonl")
    assert row["clients"] == 2
    assert set(row["client_accuracy"]) >= {"global", "personalized"}
    assert "| messages |" in (tmp_path / "rows.md").read_text()
