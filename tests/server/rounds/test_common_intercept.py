"""The common intercept: what private intercepts have in common goes into the global model."""

import json
from pathlib import Path

import numpy as np
import pytest
from federations import Settings, config_of
from numpy.typing import NDArray

from client.personal.private_fit import make_private_fit
from client.personal.runtime_learner import RuntimeLearner
from client.training.model_runtime import load_run
from server.store import LEDGER_FOLDER
from shared.frames.instructions import Split
from shared.ledger.reading import read_ledger
from shared.ledger.verification import verify_ledger
from shared.replay import DenseValues, to_float32
from simulations.adapter import FinishedRun
from simulations.simulate import simulate

LIKING = (0.95, 0.9, 0.85, 0.8, 0.7, 0.55)
"""How often each of six raters says yes, whatever the text is."""
ROWS = 40


@pytest.fixture
def raters(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of six raters with base rates of their own, of whom one is a newcomer."""
    random, rows = np.random.default_rng(0), []
    for user, liking in enumerate(LIKING):
        for number in range(ROWS + 5 * user):
            sentence = f"the film was {random.choice(['good', 'bad', 'long', 'short'])} {number}"
            label = int(random.random() < liking)
            rows.append({"sentence": sentence, "label": label, "user": f"user {user}"})
    file = tmp_path / "raters.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return settings | {
        "method": "readout",
        "rounds": 2,
        "learning-rate": 0.001,
        "data.path": str(file),
        "data.partition": "user",
        "data.clients": len(LIKING),
        "adapter.layers": "readout",
        "adapter.damping": "none",
        "adapter.label-bias": True,
        "aggregation.rule": "mean",
        "cohort.newcomers": 1,
        "evaluate.every": 0,
    }


def intercept_of(folder: Path) -> DenseValues:
    """The entry of the last round of a run's ledger."""
    *_, last = read_ledger(folder / LEDGER_FOLDER)
    (entry,) = last.delta.entries
    assert isinstance(entry, DenseValues)
    return entry


def share_of_right(figures: list[tuple[float, int]]) -> float:
    shares, counts = zip(*figures, strict=True)
    return float(np.average(shares, weights=counts))


def accuracy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    return float(np.mean(scores.argmax(axis=1) == labels))


def test_raters_with_base_rates_of_their_own(raters: Settings, tmp_path: Path) -> None:
    config = config_of(raters)
    folder = simulate(config)
    opened = FinishedRun.at(folder)
    (runtime, source), layout = load_run(config), opened.layout
    *_, before, last = verify_ledger(folder / LEDGER_FOLDER, layout)
    assert last.round == 3
    assert last.record is not None
    assert [c.client for c in last.record.delta.contributors] == [0, 1, 2, 3, 4]
    assert last.state.tobytes() == opened.global_state().tobytes()
    values, bias = intercept_of(folder), layout.label_bias
    assert bias is not None
    np.testing.assert_array_equal((last.state - before.state)[bias], values.values)
    assert not np.delete(last.state - before.state, np.r_[bias]).any()

    weights, privates, figures = [], [], {}
    for client in range(len(LIKING)):
        data = source.share_of(client, len(LIKING))
        learner = RuntimeLearner(runtime, data)
        fitted = make_private_fit(learner, config.terms, before.state)
        whole, earlier = opened.model(client), before.state + fitted
        np.testing.assert_array_equal(whole, earlier)
        test = data.tokenized(Split.TEST)
        now, then = (runtime.scores(state, test.prompts) for state in (whole, earlier))
        np.testing.assert_allclose(now, then, atol=1e-6)
        weights.append(len(data.tokenized(Split.TRAIN).labels))
        privates.append(to_float32(fitted)[bias].astype(np.float64))
        for name, state in {"before": before.state, "with": last.state, "personal": whole}.items():
            scores = runtime.scores(state, test.prompts)
            figures.setdefault(name, []).append((accuracy(scores, test.labels), len(test.labels)))
    expected = np.average(privates[:5], axis=0, weights=weights[:5])
    np.testing.assert_allclose(to_float32(values.values), expected, atol=1e-6)

    shares = {name: share_of_right(own) for name, own in figures.items()}
    labels = [source.share_of(c, 6).tokenized(Split.TEST).labels for c in range(6)]
    majority = max(np.mean(np.concatenate(labels)), 1 - np.mean(np.concatenate(labels)))
    print({**shares, "majority": majority})
    assert shares["before"] < majority - 0.2
    assert shares["with"] >= majority - 0.01
