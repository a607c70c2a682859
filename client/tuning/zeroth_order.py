"""MeZO and P-RGE on one device: a space, its steps, and the trajectory that rebuilds it."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from client.estimators import mezo, prge
from client.estimators.mezo import learning_rate_at, queries_at
from client.estimators.prge import Estimator, LossRequest, run_estimator
from client.forward.grouping import Schedule, split_by_grouping
from client.forward.streamed import make_forward_engine
from client.forward.trunk_cache import make_trunk_cache
from client.spaces.full import FullSpace, check_trainable
from client.spaces.low_rank import LoRAFASpace, LoRASpace
from client.spaces.prefix import PrefixSpace
from client.spaces.space import Space
from client.spaces.streamed import StreamedFullSpace
from client.tuning.descent import SGD, Adam, Descent, Momentum, Update
from client.tuning.settings import Method
from client.tuning.trajectory import Trajectory, TrajectoryHeader, read_trajectory
from client.tuning.tuning_setup import Figures, Split, TuningSetup
from shared.model.lora_fa import PerturbedAdapters
from shared.model.replay_torch import backend_for
from shared.step_record import STEP_SIZE_FILE, RecordedStepSize
from shared.step_size import Observation, StepSize
from shared.tasks.kinds import GenerationTask
from shared.tasks.objectives import minus_answer_metric

log = logging.getLogger("samara.tune")

TRAJECTORY_FILE = "trajectory.bin"
BLOCKS_FOLDER = "blocks"
"""Of a run that trains all parameters of a streamed model, while it goes on."""

_TRAVELS = {
    "none": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
}
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

    def __init__(self, bench: TuningSetup, folder: Path, settings_hash: bytes) -> None:
        self._bench, self._path = bench, folder / TRAJECTORY_FILE
        self._blocks = folder / BLOCKS_FOLDER
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
        self._steps = len(self._trajectory.recorded.records)
        given = None if settings.estimates_its_rate else settings.rate
        size = StepSize(settings.steps, given, settings.epsilon)
        self._step_sizes = RecordedStepSize(size, folder / STEP_SIZE_FILE, self._steps)
        self._rebuild(None)

    @property
    def steps(self) -> int:
        """Steps taken, also those that a return undid, and returns."""
        return self._steps

    @property
    def note(self) -> str:
        """What was cut from the trajectory's end."""
        return self._trajectory.recorded.note

    def step(self) -> float:
        """Estimate, record, move; returns the mean loss of all points.

        If the loss has risen beyond its noise, the step is a return instead: θ is again what it was
        where the loss was lowest, and the learning rate is lowered.

        Raises:
            TrainingError: if a projected gradient is not finite.
            TrajectoryError: if the disk refuses.
        """
        bench, step = self._bench, self.steps
        settings = bench.settings
        queries = queries_at(step, settings.steps, settings.queries, settings.query_schedule)
        seeds = self._trajectory.seeds(queries)
        size = self._step_sizes.size
        curvature = size.measures_curvature(step, queries, settings.differences)
        estimator: Estimator
        if settings.method == "prge":
            batch, differences = bench.batch(step), settings.differences
            estimator = prge.prge_estimator(seeds, batch, settings.epsilon, curvature, differences)
        else:
            batches = np.stack([bench.batch(step, query) for query in range(queries)])
            estimator = mezo.mezo_estimator(seeds, batches, settings.epsilon, curvature)
        estimate = run_estimator(estimator, self._losses_of)
        gradients = size.clipped(estimate.gradients)
        rate = learning_rate_at(
            step, settings.steps, size.learning_rate, settings.learning_rate_schedule
        )
        seen = Observation.from_step(estimate.mean_loss, gradients, rate, estimate.curvature)
        after = self._step_sizes.record(seen.scaled(_gain(self._update)))
        if after.back_to is None:
            self._descent.step(self._trajectory.append(gradients, rate))
        else:
            self._trajectory.append_return(after.back_to)
            log.warning(
                "step %d: the loss rose to %.4g; back to what the model was after step %d, "
                "with a lower learning rate",
                step + 1,
                estimate.mean_loss,
                after.back_to,
            )
            self._begin_anew(step + 1)
        self._steps = step + 1
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
            self._begin_anew(step)
            self._steps = step

    def _begin_anew(self, steps: int) -> None:
        """Go from the base to after so many steps of the trajectory."""
        del self._space, self._forward, self._descent
        self._bench.drop()
        self._bench.load()
        self._place()
        self._rebuild(steps)

    def digest(self) -> str:
        """Of names, shapes and θ."""
        return self._space.digest().hex()

    def close(self) -> None:
        """Close the trajectory; the blocks that were trained can be made again from it."""
        self._trajectory.close()
        shutil.rmtree(self._blocks, ignore_errors=True)

    def _place(self) -> None:
        """Put a space into the model, and an engine around it."""
        bench = self._bench
        self._space = space = space_of(bench, self._blocks)
        adapter = space.adapter
        cache = make_trunk_cache(bench.base, adapter.first_block, bench.settings.trunk_cache)
        parameters = space if isinstance(space, StreamedFullSpace) else None
        streamed = bench.stream is not None
        self._forward = make_forward_engine(
            bench.base, adapter, bench.scorer, streamed, cache, parameters
        )

    def _rebuild(self, steps: int | None) -> None:
        """Go from the beginning to after so many steps, or all."""
        recorded = read_trajectory(self._path)
        recorded = replace(recorded, records=recorded.records[:steps])
        # Held moments give the same bits as those that are made anew from all steps before, which
        # is what is left where there is no memory for the model itself.
        hold_moments = not isinstance(self._space, StreamedFullSpace)
        self._descent: Descent = recorded.rebuild(
            self._space, self._update, self._bench.base.model_id, hold_moments
        )

    def _losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        if self._bench.decodes:
            return self._losses_of_answers(request)
        train = self._bench.splits["train"]
        prompts = [train.prompts[index] for index in request.batch]

        def run(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            return self._forward.scores(perturbations, prompts, self._schedule)

        scores = self._space.evaluate(run, request.seeds, request.epsilon, request.signs)
        return self._bench.objective(scores, train.labels[request.batch])

    def _losses_of_answers(self, request: LossRequest) -> NDArray[np.float64]:
        task, train = self._bench.task, self._bench.splits["train"]
        assert isinstance(task, GenerationTask)
        prompts = [train.open_prompts[index] for index in request.batch]
        accepted = [train.examples[index].answers for index in request.batch]

        def run(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            losses = np.empty(perturbations.count, np.float32)
            for place, perturbation in split_by_grouping(perturbations, "sequential"):
                answers = self._forward.decode_answers(
                    perturbation, prompts, self._schedule.micro_batch
                )
                losses[place] = minus_answer_metric(task, [answers], accepted)
            return losses

        found = self._space.evaluate(run, request.seeds, request.epsilon, request.signs)
        return found.astype(np.float64)


def _gain(update: Update) -> float:
    """How many times a step's gradient moves the state in all, moments included."""
    return 1 / (1 - update.beta) if isinstance(update, Momentum) else 1.0


def space_of(bench: TuningSetup, blocks: Path = Path(BLOCKS_FOLDER)) -> Space:
    """The space that the settings ask for, where it begins, in the model of the bench.

    Args:
        bench: with its model as it was loaded.
        blocks: folder for those that are trained and streamed from disk.

    Raises:
        ModelError: if the model has no such space.
    """
    settings, base = bench.settings, bench.base
    backend = backend_for(torch.device(settings.model.torch_device), settings.threads)
    labels = bench.scorer.labels
    match settings.space:
        case "full" if bench.stream is not None:
            check_trainable(base)
            bench.stream.detach()
            store = bench.loaded.make_trainable_store(blocks, _TRAVELS[settings.stream_compression])
            distribution = settings.adapter.distribution
            space = StreamedFullSpace(base, store, backend, distribution=distribution)
            bench.stream = space.stream
            return space
        case "full":
            return FullSpace(base, backend, distribution=settings.adapter.distribution)
        case "lora":
            return LoRASpace(base, settings.adapter, labels, backend)
        case "prefix":
            distribution = settings.adapter.distribution
            return PrefixSpace(base, settings.prefix_length, bench.root, backend, distribution)
        case _:
            return LoRAFASpace(base, settings.adapter, labels, backend)
