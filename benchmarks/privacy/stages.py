"""The stages of the pipeline that a curious server may be behind, and the scalars it asks for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.privacy.federation import make_config
from shared.config import RunConfig
from shared.frames.report import Report
from shared.frames.vector_report import hide_report

ALL = 10_000
"""A batch that holds all sentences of a client."""


@dataclass(frozen=True)
class Stage:
    """The steps between a client's report and what the server sees.

    Attributes:
        clients: clients in the sum.
        clips: whether every client clips what it says.
        epsilon: ε of all rounds by the noise on the sum; None without noise.
    """

    clients: int = 1
    clips: bool = False
    epsilon: float | None = None

    @property
    def name(self) -> str:
        """The name in tables."""
        parts = ["one client's report" if self.clients == 1 else f"sum over {self.clients}"]
        parts += ["clipped"] if self.clips else []
        parts += [f"ε = {self.epsilon:g}"] if self.epsilon else []
        return ", ".join(parts)


STAGES = tuple(
    Stage(clients, clips, epsilon)
    for clients in (1, 8, 64)
    for clips, epsilon in ((False, None), (True, None), (True, 8.0), (True, 2.0), (True, 0.5))
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
    """Return the noise multiplier of a stage; 0 without noise."""
    if stage.epsilon is None:
        return 0.0
    own = {"privacy.mode": "central", "privacy.epsilon": stage.epsilon, "rounds": rounds}
    return make_config(own).privacy.mechanism(rounds, 1, 1).noise_multiplier
