"""The round of intercepts after training by a profiled loss, without private intercepts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federations import Settings, config_of
from numpy.typing import NDArray

from samara.client.training.model_runtime import load_run
from samara.server.store import LEDGER_FOLDER
from samara.shared.errors import ConfigError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import to_float32
from samara.shared.settings.config import RunConfig
from samara.shared.tasks.profiled_loss import PROFILED, fitted_shift
from samara.simulations.exports.adapter import FinishedRun, export
from samara.simulations.simulate import simulate

OWN: Settings = {
    "method": "global",
    "objective": PROFILED,
    "adapter.label-bias": True,
    "rounds": 2,
    "evaluate.every": 0,
}


def states_of(config: RunConfig) -> list[NDArray[np.int64]]:
    """The states after each round of a run."""
    folder = simulate(config)
    layout = FinishedRun.at(folder).layout
    return [one.state for one in verify_ledger(folder / LEDGER_FOLDER, layout)]


def shifts_under(config: RunConfig, state: NDArray[np.int64]) -> list[tuple[int, list[float]]]:
    """Each client's number of training examples, and the shift fitted to their scores."""
    run, found = load_run(config), []
    for client in range(config.data.clients):
        own = run.data.share_of(client, config.data.clients).tokenized(Split.TRAIN)
        (shift,) = fitted_shift(run.runtime.scores(state, own.prompts)[None], own.labels)
        found.append((len(own.labels), shift.tolist()))
    return found


@pytest.mark.parametrize("method", ["global", "finetune"])
def test_the_last_round_adds_the_mean_shift(
    settings: Settings, tmp_path: Path, method: str
) -> None:
    config = config_of(settings | OWN, method=method, aggregation__rule="mean")
    *_, trained, corrected = states_of(config)
    assert config.terms.intercept_round == config.terms.rounds_of_federation + 1
    opened = FinishedRun.at(Path(config.out))
    counts, shifts = zip(*shifts_under(config, trained), strict=True)
    bias = opened.layout.label_bias
    assert bias is not None
    added = to_float32(corrected - trained)
    np.testing.assert_allclose(added[bias], np.average(shifts, axis=0, weights=counts), atol=1e-5)
    assert not np.delete(added, np.r_[bias]).any()
    assert np.abs(added[bias]).max() > 0.01
    assert opened.result.rounds[-1].reports == config.data.clients
    assert opened.result.evaluations[-1].round == config.terms.intercept_round
    np.testing.assert_allclose(
        export(Path(config.out), None, tmp_path / "adapter")["label bias"],
        to_float32(corrected)[bias],
    )
