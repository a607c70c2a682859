"""The loop in docs/concepts/mezo.md, run as written, and its results."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from documented import FENCED, ROOT
from numpy.typing import NDArray
from streams import TASK, TEXTS

from samara.client.estimators.mezo import learning_rate_at, mezo_estimator, queries_at
from samara.client.estimators.prge import run_estimator
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.spaces.full import FullSpace
from samara.client.tuning.descent import SGD
from samara.client.tuning.trajectory import TrajectoryWriter, make_header, read_trajectory
from samara.shared.model.loading import load_base_model
from samara.shared.model.scorers import scorer_for
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.tasks.label_scores import cross_entropy

PAGE = "docs/concepts/mezo.md"
STEPS = 3


def batches(step: int, queries: int) -> NDArray[np.int64]:
    """Return the examples of each query of a step."""
    return np.random.default_rng(step).integers(0, len(TEXTS), (queries, 2))


def test_the_loop_of_the_page_trains_and_its_trajectory_rebuilds_the_model(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, file, rule = str(model_folder("causal")), tmp_path / "trajectory.bin", SGD()
    base = load_base_model(folder)
    with torch.inference_mode():
        scorer = scorer_for(base, TASK, 40, PerturbedBody(base, 0))
    names = {
        **{each.__name__: each for each in (FullSpace, ResidentForward, PerturbedBody)},
        **{each.__name__: each for each in (make_header, TrajectoryWriter, run_estimator)},
        **{each.__name__: each for each in (mezo_estimator, queries_at, learning_rate_at)},
        **{each.__name__: each for each in (cross_entropy, batches)},
        "base": base,
        "backend": NumbaBackend(1),
        "scorer": scorer,
        "rule": rule,
        "root": 5,
        "epsilon": 1e-3,
        "settings_hash": bytes(32),
        "file": file,
        "prompts": [scorer.prompt(text) for text in TEXTS],
        "labels": np.array([1, 0, 0, 1]),
        "schedule": Schedule("both", 4),
        "steps": STEPS,
        "most": 2,
        "first": 1e-3,
    }
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    (block,) = [match[3] for match in FENCED.finditer(text) if match[2] == "python"]
    exec(compile(block, PAGE, "exec"), names)
    names["writer"].close()
    trajectory = read_trajectory(file)
    assert len(trajectory.records) == STEPS
    again = FullSpace(load_base_model(folder), NumbaBackend(1))
    start = again.digest()
    trajectory.rebuild(again, rule, base.model_id)
    assert again.digest() == names["space"].digest() != start
