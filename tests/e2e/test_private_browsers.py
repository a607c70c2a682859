"""Boards and real browsers in a private run, and an owner who limits ε: processes over TLS."""

import json
from pathlib import Path

import pytest
from browsers import chromium
from built_page import built_page
from private_browsers import measure

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")
ROUNDS = 4


def test_browsers_count_epsilon_as_a_board_does_and_an_owners_limit_ends_the_rounds(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chromium()
    built_page()
    folder: Path = tmp_path_factory.mktemp("b")  # short: sockets lie in it
    found = measure(folder, ROUNDS, 2, 2)
    print(json.dumps(found))
    board, (free, limited) = found["board-0"], found["browsers"].values()
    assert free["epsilon"] == pytest.approx(board["epsilon"], rel=1e-9)
    assert (free["reports"], limited["reports"]) == (ROUNDS, ROUNDS // 2)
    assert limited["epsilon"] <= found["limit"] < free["epsilon"]
    assert f"{free['epsilon']:.3g}" in free["shows"]
    assert f"{found['limit']:g}" in found["the page with it"]
    assert found["reports in each round's sum"] == [4, 4, 3, 3]
