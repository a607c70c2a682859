"""A run's rounds as curves for TensorBoard."""

from pathlib import Path

import pytest

from samara.server.store import METRICS_FILE
from samara.server.watch.round_curves import write_curves
from samara.shared.storage.events import append_event

pytest.importorskip("tensorboard", reason="needs the extra samara-fl[tensorboard]")


def append_round(run: Path, number: int, loss: float | None) -> None:
    figures = {"reports": 3, "bytes_up": 96, "bytes_down": 40, "refused": [1]}
    append_event(run / METRICS_FILE, {"event": "round", "round": number, "loss": loss, **figures})


def append_evaluation(run: Path, number: int, *columns: str) -> None:
    figures = {"mean_client_accuracy": 0.5 + number / 10, "loss": 0.7}
    values = dict.fromkeys(columns, figures)
    event = {"event": "evaluation", "split": "test", "round": number, "columns": values}
    append_event(run / METRICS_FILE, event)


def test_what_is_measured_again_makes_a_curve(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    append_evaluation(tmp_path, 0, "zero-shot", "global")
    append_round(tmp_path, 1, 0.9)
    assert write_curves(tmp_path, tmp_path / "curves") == 0
    assert not (tmp_path / "curves").exists()

    append_round(tmp_path, 2, None)
    append_round(tmp_path, 3, 0.8)
    append_evaluation(tmp_path, 3, "global")
    count = write_curves(tmp_path, tmp_path / "curves")
    accumulator = EventAccumulator(str(tmp_path / "curves"))
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    assert count == len(names) == 8
    assert "test/zero-shot accuracy" not in names
    assert [event.step for event in accumulator.Scalars("round/loss")] == [1, 3]
    refused = accumulator.Scalars("round/refused")
    assert [(event.step, event.value) for event in refused] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    accuracy = accumulator.Scalars("test/global accuracy")
    assert [event.value for event in accuracy] == pytest.approx([0.5, 0.8])
