"""The label bias that private rounds have learned, in a file that the client's next run reads."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from samara.client.personal.kept_label_bias import LABEL_BIAS_FILE, LabelBiases
from samara.client.personal.learner import Learner, ScoredExamples
from samara.shared.errors import LedgerError
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.layout import ADAPTER_GROUP, LABEL_BIAS_GROUP, Layout, Tensor
from samara.shared.protocol.replay import STATE_BITS, replay, zero_state
from samara.shared.settings.config import RunConfig

INNER = Tensor("inner", 4, 1, ADAPTER_GROUP)
BIAS = Tensor("label bias", 3, 1, LABEL_BIAS_GROUP)
LAYOUT, WITHOUT = (Layout(tensors, 1, 4.0, 7, "gaussian") for tensors in ((INNER, BIAS), (INNER,)))
ONE = 1 << STATE_BITS
LABELS = "sad", "calm", "glad"


class Owner:
    """A client whose model scores every text alike, and whose examples have one label."""

    client, solve, backend = 7, None, None

    def __init__(
        self, label: int, layout: Layout = LAYOUT, labels: tuple[str, ...] = LABELS
    ) -> None:
        self.label, self.layout, self.labels = label, layout, labels
        self.splits = {Split.TRAIN: 5, Split.VALIDATION: 2}

    def data_hash(self, split: Split) -> str:
        return "ab" if self.splits.get(split) else ""

    def score(self, state: NDArray[np.int64], split: Split) -> ScoredExamples:
        bias = np.ldexp(state[-3:].astype(np.float64), -STATE_BITS).astype(np.float32)
        count = self.splits[split]
        return ScoredExamples(np.tile(bias, (count, 1)), np.full(count, self.label))


def biases(home: Path, run: str, owner: Any, **changes: Any) -> LabelBiases:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    terms = RunConfig.of({"adapter.label-bias": True} | dotted, "test").terms
    learner: Learner = owner
    return LabelBiases(learner, terms, home / run / "clients" / "7", home)


def private(*values: int) -> NDArray[np.int64]:
    return np.array([5, 6, 7, 8, *(ONE * value for value in values)])


def kept_by(home: Path, run: str, values: tuple[int, ...], age: int = 0, **of: Any) -> Path:
    """The file of an earlier run that ended some seconds ago."""
    biases(home, run, Owner(2, **of)).keep(private(*values))
    file = home / run / "clients" / "7" / LABEL_BIAS_FILE
    os.utime(file, (10_000 - age, 10_000 - age))
    return file


def began_with(home: Path, owner: Any, is_new: bool = True, **changes: Any) -> list[int]:
    begun = biases(home, "new", owner, **changes)
    begun.begin(zero_state(owner.layout.size), is_new)
    state = replay(zero_state(7), begun.began_with, "gaussian")
    assert not state[:4].any()
    return [int(value) // ONE for value in state[4:]]


def test_a_run_with_the_same_labels_begins_with_what_the_latest_run_learned(tmp_path: Path) -> None:
    kept_by(tmp_path, "older", (9, -9, 0), age=50)
    kept_by(tmp_path, "old", (-1, 0, 1), age=10)
    assert began_with(tmp_path, Owner(2)) == [-1, 0, 1]
    kept_by(tmp_path, "latest", (0, 0, 3))  # what a run begins with is decided once
    assert began_with(tmp_path, Owner(2)) == [-1, 0, 1]
    again = biases(tmp_path, "new", Owner(2))
    again.keep(private(4, 4, 4))
    assert began_with(tmp_path, Owner(2)) == [-1, 0, 1]
    assert json.loads((tmp_path / "new/clients/7" / LABEL_BIAS_FILE).read_text()) == {
        "labels": list(LABELS),
        "values": [4 * ONE] * 3,
        "began_with": [-ONE, 0, ONE],
    }


@pytest.mark.parametrize(
    ("owner", "changes", "is_new"),
    [
        (Owner(0), {}, True),  # the loss would rise
        (Owner(2, labels=("glad", "calm", "sad")), {}, True),
        (Owner(2, labels=("sad", "calm", "happy")), {}, True),
        (Owner(2, WITHOUT), {}, True),
        (Owner(2), {"method": "readout"}, True),
        (Owner(2), {"method": "partial", "personal__part": "inner*"}, True),
        (Owner(2), {}, False),
    ],
    ids=["loss", "order", "labels", "layout", "fitted", "not private", "begun before"],
)
def test_otherwise_it_begins_with_nothing(
    owner: Owner, changes: dict[str, Any], is_new: bool, tmp_path: Path
) -> None:
    kept_by(tmp_path, "old", (-1, 0, 1))
    assert not any(began_with(tmp_path, owner, is_new, **changes))


def test_without_validation_examples_the_training_examples_decide(tmp_path: Path) -> None:
    kept_by(tmp_path, "old", (-1, 0, 1))
    owner = Owner(0)
    owner.splits = {Split.TRAIN: 3}
    assert not any(began_with(tmp_path, owner))
    owner = Owner(2)
    owner.splits = {Split.TRAIN: 3}
    assert began_with(tmp_path / "nowhere", owner) == [0, 0, 0]
    (tmp_path / "new/clients/7" / LABEL_BIAS_FILE).unlink()
    assert began_with(tmp_path, owner) == [-1, 0, 1]


def test_a_simulated_client_neither_keeps_nor_takes_any(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "clients" / "7"
    simulated = LabelBiases(Owner(2), RunConfig.of({}, "test").terms, folder, None)  # type: ignore[arg-type]
    simulated.begin(zero_state(7), is_new=True)
    simulated.keep(private(1, 2, 3))
    assert simulated.began_with == ()
    assert not folder.exists()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"labels": ["sad", "calm", "glad"], "values": [1, 2], "began_with": []}',
        '{"labels": ["sad", "calm", "glad"], "values": [1, 2, 0.5], "began_with": []}',
        '{"labels": ["sad", "calm", "glad"], "values": [1, 2, true], "began_with": []}',
        '{"labels": ["sad", "calm", "glad"], "values": [0, 0, 1e300], "began_with": []}',
        json.dumps({"labels": LABELS, "values": [0, 0, 1 << 62], "began_with": []}),
        json.dumps({"labels": LABELS, "values": [0, 0, 1 << 80], "began_with": []}),
        json.dumps({"labels": 7, "values": [], "began_with": []}),
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_left_out_and_said(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = kept_by(tmp_path, "old", (-1, 0, 1))
    file.write_text(content)
    with caplog.at_level(logging.WARNING, "samara.client"):
        assert began_with(tmp_path, Owner(2)) == [0, 0, 0]
    assert "the label bias cannot be read" in caplog.text


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("")
    with pytest.raises(LedgerError, match="cannot be written"):
        biases(tmp_path, "new", Owner(2)).begin(zero_state(7), is_new=True)
