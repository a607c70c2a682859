"""MeZO and P-RGE on one device: a space, its steps, and the trajectory that rebuilds it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client.descent import SGD, Adam, Descent, Momentum, Update
from client.estimators import mezo, prge
from client.estimators.mezo import carried_out, learning_rate_at, queries_at
from client.estimators.prge import Trial
from client.forward.body import Body, trunk_cache
from client.forward.grouping import Schedule, grouped
from client.forward.resident import ResidentForward
from client.spaces.full import FullSpace
from client.spaces.low_rank import LoRAFASpace, LoRASpace
from client.spaces.prefix import PrefixSpace
from client.spaces.space import Space
from client.trajectory import Trajectory, TrajectoryHeader, read_trajectory
from client.tuning.settings import Method
from client.tuning.workbench import Figures, Split, Workbench
from shared.model.lora_fa import Adapters
from shared.model.replay_torch import backend_for
from shared.tasks.kinds import GenerationTask
from shared.tasks.objectives import minus_answer_metric

TRAJECTORY_FILE = "trajectory.bin"

UPDATES: dict[Method, Update] = {
    "prge": SGD(),
    "mezo": SGD(),
    "mezo-momentum": Momentum(),
    "mezo-adam": Adam(),
}
"""How each method makes steps of gradient estimates."""


class ZerothOrder:
    """A space that is moved by projected gradients.

    Args:
        bench: its model is moved, or gets adapters.
        folder: of the run; the trajectory in it is continued.
        settings_hash: of everything that decides what the run does, 32 bytes.

    Raises:
        SamaraError: if model and space do not go together, or the trajectory cannot be continued.
    """

    def __init__(self, bench: Workbench, folder: Path, settings_hash: bytes) -> None:
        self._bench, self._path = bench, folder / TRAJECTORY_FILE
        settings = bench.settings
        self._update = UPDATES[settings.method]
        self._schedule = Schedule(settings.grouping, settings.micro_batch)
        self._place()
        header = TrajectoryHeader.of(
            self._space,
            self._update,
            model_id=bench.base.model_id,
            root=bench.root,
            epsilon=settings.epsilon,
            settings_hash=settings_hash,
        )
        self._trajectory = Trajectory(self._path, header, self._space)
        self._rebuild(None)

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self._descent.history)

    @property
    def note(self) -> str:
        """What was cut from the trajectory's end."""
        return self._trajectory.recorded.note

    def step(self) -> float:
        """Estimate, record, move; returns the mean loss of all points.

        Raises:
            TrainingError: if a projected gradient is not finite.
            TrajectoryError: if the disk refuses.
        """
        bench, step = self._bench, self.steps
        settings = bench.settings
        queries = queries_at(step, settings.steps, settings.queries, settings.query_schedule)
        seeds = self._trajectory.seeds(queries)
        estimator: mezo.Estimator
        if settings.method == "prge":
            estimator = prge.estimate(seeds, bench.batch(step), settings.epsilon)
        else:
            batches = np.stack([bench.batch(step, query) for query in range(queries)])
            estimator = mezo.estimate(seeds, batches, settings.epsilon)
        estimate = carried_out(estimator, self._losses_of)
        rate = learning_rate_at(
            step, settings.steps, settings.learning_rate, settings.learning_rate_schedule
        )
        self._descent.step(self._trajectory.append(estimate.gradients, rate))
        return estimate.mean_loss

    def figures(self, split: Split) -> Figures:
        """How good θ is."""
        return self._bench.figures(self._forward, self._space.evaluate, split)

    def save(self) -> None:
        """Every step is on the disk before it is taken."""

    def keep(self) -> None:
        """The trajectory leads everywhere."""

    def recall(self, step: int) -> None:
        """Rebuild from the base and the first steps of the trajectory."""
        if step != self.steps:
            # Dropped first: two models need not be in memory at once.
            del self._space, self._forward, self._descent, self._bench.base, self._bench.scorer
            self._bench.load()
            self._place()
            self._rebuild(step)

    def digest(self) -> str:
        """Of names, shapes and θ."""
        return self._space.digest().hex()

    def close(self) -> None:
        """Close the trajectory."""
        self._trajectory.close()

    def _place(self) -> None:
        """Put a space into the model, and an engine around it."""
        bench = self._bench
        self._space = space_of(bench)
        adapter = self._space.adapter
        cache = trunk_cache(bench.base, adapter.first_block, bench.settings.trunk_cache)
        body = Body(bench.base, adapter.first_block, cache)
        self._forward = ResidentForward(adapter, bench.scorer, body)

    def _rebuild(self, steps: int | None) -> None:
        """Go from the beginning to after so many steps, or all."""
        recorded = read_trajectory(self._path)
        recorded = replace(recorded, steps=recorded.steps[:steps])
        # Held moments give the same bits as those that are made anew from all steps before.
        self._descent: Descent = recorded.rebuild(
            self._space, self._update, self._bench.base.model_id, hold_moments=True
        )

    def _losses_of(self, trial: Trial) -> NDArray[np.float64]:
        if self._bench.decodes:
            return self._losses_of_answers(trial)
        train = self._bench.splits["train"]
        prompts = [train.prompts[index] for index in trial.batch]

        def run(points: Adapters) -> NDArray[np.float32]:
            return self._forward.scores(points, prompts, self._schedule)

        scores = self._space.evaluate(run, trial.seeds, trial.epsilon)
        return self._bench.objective(scores, train.labels[trial.batch])

    def _losses_of_answers(self, trial: Trial) -> NDArray[np.float64]:
        task, train = self._bench.task, self._bench.splits["train"]
        assert isinstance(task, GenerationTask)
        prompts = [train.open_prompts[index] for index in trial.batch]
        accepted = [train.examples[index].answers for index in trial.batch]

        def run(points: Adapters) -> NDArray[np.float32]:
            losses = np.empty(points.count, np.float32)
            for place, point in grouped(points, "sequential"):
                answers = self._forward.answers(point, prompts, self._schedule.micro_batch)
                losses[place] = minus_answer_metric(task, [answers], accepted)
            return losses

        return self._space.evaluate(run, trial.seeds, trial.epsilon).astype(np.float64)


def space_of(bench: Workbench) -> Space:
    """The space that the settings ask for, where it begins, in the model of the bench.

    Raises:
        ModelError: if the model has no such space.
    """
    settings, base = bench.settings, bench.base
    backend = backend_for(torch.device(settings.model.device), settings.threads)
    labels = bench.scorer.labels
    match settings.space:
        case "full":
            return FullSpace(base, backend, distribution=settings.adapter.distribution)
        case "lora":
            return LoRASpace(base, settings.adapter, labels, backend)
        case "prefix":
            distribution = settings.adapter.distribution
            return PrefixSpace(base, settings.prefix_length, bench.root, backend, distribution)
        case _:
            return LoRAFASpace(base, settings.adapter, labels, backend)
