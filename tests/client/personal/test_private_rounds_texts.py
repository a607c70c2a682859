"""Private rounds that do not lower the loss of the owner's validation texts are undone."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from federations import Settings, config_of, loaded
from helpers import RUN_ID

from samara.client.personal.learner import ScoredExamples, State
from samara.client.personal.private_rounds import open_personal_ledger, run_private_rounds
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.replay import zero_state

ROUNDS = 3


def has_moved(state: State) -> bool:
    """Return whether a state differs from zero by more than the last bit, which erasing leaves."""
    return bool(np.abs(state).max() > 1)


class Judged(RuntimeLearner):
    """A learner whose validation loss rises or falls as soon as private rounds move the state."""

    def __init__(self, *of_client: object, rises: bool) -> None:
        super().__init__(*of_client)  # type: ignore[arg-type]
        self._sign = -1.0 if rises else 1.0

    def score(self, state: State | None, split: Split) -> ScoredExamples:
        assert split is Split.VALIDATION
        scored = super().score(state, split)
        moved = float(state is not None and has_moved(state))
        return scored._replace(scores=np.full_like(scored.scores, self._sign * moved - 2.0))


@pytest.fixture
def texts(settings: Settings, tmp_path: Path) -> Settings:
    rows = [
        {"text": f"the film was very {word} {i}"} for i in range(12) for word in ("good", "bad")
    ]
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = {"task": "texts", "data.path": str(file), "personal.learning-rate": 0.1}
    return settings | own | {"rounds": 1, "personal.rounds": ROUNDS}


@pytest.mark.parametrize("method", ["finetune", "ditto"])
@pytest.mark.parametrize("rises", [True, False])
def test_rounds_that_raise_the_validation_loss_are_undone(
    method: str, rises: bool, texts: Settings, tmp_path: Path
) -> None:
    """A second call, as after a crash, gives the same end from the recorded rounds."""
    runtime, source = loaded(texts, method=method)
    terms, w = config_of(texts, method=method).terms, zero_state(runtime.layout.size)
    learner = Judged(runtime, source.share_of(0, 3), rises=rises)
    for _ in range(2):
        ledger = open_personal_ledger(tmp_path, RUN_ID, runtime.layout, 0)
        with closing(ledger):
            private = run_private_rounds(learner, terms, w, ledger)
        records = list(read_ledger(ledger.folder))
        assert len(records) == ROUNDS + rises
        assert has_moved(private) is not rises
        assert np.array_equal(private, ledger.state)
    assert np.array_equal(private, run_private_rounds(learner, terms, w))


def test_without_validation_texts_private_rounds_stay(texts: Settings) -> None:
    runtime, source = loaded(texts)
    data = source.share_of(0, 3)
    data.replace_examples([one for one in data.examples if one.split != "validation"])
    private = run_private_rounds(
        Judged(runtime, data, rises=True), config_of(texts).terms, zero_state(runtime.layout.size)
    )
    assert private.any()
