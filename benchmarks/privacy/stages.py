"""The stages of the pipeline that a curious server may be behind, and the scalars it asks for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.privacy.federation import make_config, noised_sum
from samara.shared.config import RunConfig
from samara.shared.frames.report import Report
from samara.shared.frames.vector_report import hide_report
from samara.shared.privacy.vector import SENSITIVITY, VectorSum, read_sum
from samara.shared.secure_aggregation.keys import fresh_seed
from samara.shared.secure_aggregation.masks import mask_vector

ALL = 10_000
"""A batch that holds all sentences of a client."""


@dataclass(frozen=True)
class Stage:
    """The steps between a client's report and what the server sees.

    Attributes:
        clients: clients in the sum.
        clips: whether every client clips what it says.
        epsilon: ε of all rounds by the noise on the sum; None without noise.
        masks: whether the server sees the one report under the masks of secure aggregation.
    """

    clients: int = 1
    clips: bool = False
    epsilon: float | None = None
    masks: bool = False

    @property
    def name(self) -> str:
        """The name in tables."""
        parts = ["one client's report" if self.clients == 1 else f"sum over {self.clients}"]
        parts += ["clipped"] if self.clips else []
        parts += ["masked"] if self.masks else []
        parts += [f"ε = {self.epsilon:g}"] if self.epsilon else []
        return ", ".join(parts)


STAGES = (
    Stage(1, clips=True, masks=True),
    *(
        Stage(clients, clips, epsilon)
        for clients in (1, 8, 64)
        for clips, epsilon in ((False, None), (True, None), (True, 8.0), (True, 2.0), (True, 0.5))
    ),
)


@dataclass(frozen=True)
class Condition:
    """The scalars that clients are asked for.

    Attributes:
        part: what is trained, `readout` or `inner`.
        examples: sentences of a client.
        batch: sentences of a step.
        rounds, queries: rounds of one step, and directions of each.
    """

    part: str
    examples: int
    batch: int
    rounds: int
    queries: int


CONDITIONS = (
    Condition("readout", 10, ALL, 1, 32),
    Condition("readout", 10, ALL, 12, 32),
    Condition("readout", 10, ALL, 1, 384),
    Condition("readout", 50, ALL, 12, 32),
    Condition("readout", 50, 32, 12, 32),
    Condition("inner", 10, ALL, 1, 32),
    Condition("inner", 10, ALL, 12, 32),
)


def config_of(condition: Condition, seed: int) -> RunConfig:
    """Return the settings of a run that asks for the scalars of a condition."""
    own = {"rounds": condition.rounds, "steps": 1, "queries": condition.queries}
    return make_config({**own, "batch": condition.batch, "seed": seed})


def vector_of(report: Report, clip: float) -> NDArray[np.int32]:
    """Return the vector that a client sends in the place of a report."""
    return hide_report(report, clip, 0).vector.astype(np.int32)


def multiplier_of(stage: Stage, rounds: int) -> float:
    """Return the noise multiplier of a stage; 0 without noise.

    A mask is as good as noise that is uniform over all numbers of 64 bits.
    """
    if stage.masks:
        return 2.0**64 / math.sqrt(12) / SENSITIVITY
    if stage.epsilon is None:
        return 0.0
    own = {"privacy.mode": "central", "privacy.epsilon": stage.epsilon, "rounds": rounds}
    return make_config(own).privacy.mechanism(rounds, 1, 1).noise_multiplier


def seen_sum(stage: Stage, reports: Sequence[Report], rounds: int, clip: float) -> VectorSum:
    """Return what the server reads of clipped reports: their noised sum, or one under masks.

    Args:
        stage: stage of the pipeline.
        reports: reports of one round, of as many clients as the stage has in a sum.
        rounds: rounds of all, which share the stage's ε.
        clip: largest norm of a client's numbers.
    """
    vectors = [vector_of(report, clip) for report in reports]
    if stage.masks:
        (vector,) = vectors
        return read_sum(mask_vector(vector, 0, fresh_seed(), {}).view(np.int64), clip)
    return noised_sum(vectors, multiplier_of(stage, rounds), clip)
