"""Aggregators of private rounds, and vectors for them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from helpers import instruction_with

from samara.server.rounds.private_aggregator import Noise, PrivateAggregator
from samara.server.rounds.report_validation import ValidatedReplies
from samara.server.store import RunStore
from samara.shared.protocol.frames.instructions import SeedPolicy, TrainInstruction, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.frames.vector_report import VectorReport, hide_report
from samara.shared.settings.config import RunConfig

ASKED = instruction_with(
    steps=2, queries=3, seed_policy=SeedPolicy.SHARED, learning_rate=0.5, curvature_every=1
)


CLIP = 2.0


ROUNDS = 3


def silent(count: int, sigma: int) -> Any:
    return np.zeros(count, object)


def none_left(count: int, sigma: int) -> Any:
    raise AssertionError("fresh noise for a round that has a release")


def aggregator(folder: Path, noise: Noise = silent, **privacy: Any) -> PrivateAggregator:
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "seed-policy": "shared",
        "aggregation.rule": "mean",
        "privacy.mode": "central",
        "privacy.clip": CLIP,
        "privacy.noise-multiplier": 1.0,
        "cohort.minimum": privacy.get("bucket", 1),
    }
    settings |= {f"privacy.{key.replace('_', '-')}": value for key, value in privacy.items()}
    store = SimpleNamespace(folder=folder, ledger=SimpleNamespace(check=lambda delta: None))
    return PrivateAggregator(RunConfig.of(settings, "test"), cast(RunStore, store), noise)


def hidden(report: Report, clip: float, has_indicator: bool = False) -> VectorReport:
    made = hide_report(report, clip, 0, has_indicator=has_indicator)
    assert isinstance(made, VectorReport)
    return made


def vectors(*rows: Any, asked: TrainInstruction = ASKED) -> ValidatedReplies[VectorReport]:
    token = token_of(asked.encode())
    reports = [
        Report(token, client, 10, 0.5, np.array(row, np.float32).reshape(2, 3), curvature=4.0)
        for client, row in enumerate(rows)
    ]
    answers = {report.client: hidden(report, CLIP) for report in reports}
    return ValidatedReplies[VectorReport](answers=answers)


def gradients(aggregated: Any) -> np.ndarray:
    """Mean projected gradients that a delta's coefficients represent, float64 [K · q]."""
    (group,) = aggregated.delta.groups
    coefficients = np.ldexp(group.scalars.coefficients.astype(float), group.scalars.shift - 40)
    return coefficients * -ASKED.queries / ASKED.learning_rate
