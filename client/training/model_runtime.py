"""The model runtime: base model, adapter, scorer, forward engine, and their execution.

The runtime does not depend on clients. Its method `scores` evaluates prompts under a state. Local
steps (local_steps.py) use its forward engine, replay backend and schedule.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.forward.grouping import Schedule
from samara.client.forward.peak_memory import keep_freed_memory, return_freed_memory
from samara.client.forward.readout import ReadoutForward
from samara.client.forward.representation_store import (
    RepresentationStore,
    make_representation_store,
)
from samara.client.forward.setup import EVALUATION_MICRO_BATCH, make_forward, make_scorer
from samara.client.forward.streamed import make_forward_engine
from samara.client.forward.trunk_cache import MemoryCache, TrunkCache, make_trunk_cache
from samara.client.forward.turns import forward_pass
from samara.client.streaming.loading import LoadedModel, load_model
from samara.client.training.client_data import (
    ClientDataSource,
    ExampleReader,
    ExampleTokenizer,
    example_reader,
)
from samara.client.training.execution import (
    Execution,
    StepBenchmark,
    choose_first_pass,
    choose_schedule,
    evaluation_batch_size,
    read_or_decide_execution,
)
from samara.shared.errors import ConfigError
from samara.shared.machine.process import cores
from samara.shared.model.cache_key import model_inputs, scorer_inputs
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations, WeightMap
from samara.shared.model.replay_torch import backend_for
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.directions import directions
from samara.shared.protocol.replay import Backend
from samara.shared.settings.config import NO_STREAMED_GRADIENTS, RunConfig
from samara.shared.settings.features import check_features, kind_of
from samara.shared.settings.runs import run_folder, run_id_of
from samara.shared.tasks.catalog import task_of
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.objectives import Objective, decodes_answers, training_objective
from samara.shared.tasks.rows import Example


class ModelRuntime:
    """A loaded model under the settings of a run, for use by one thread at a time.

    Args:
        config: settings of the run.
        model: loaded base model.
        task: task to which the model is adapted.
        examples: function that returns the examples on which the execution is measured.
        predecessor: runtime of the same model, task and data, whose caches are reused.

    Raises:
        ConfigError: if the settings cannot be combined with the task.

    Attributes:
        config: settings of the run.
        layout: layout of the adapter.
        weight_map: map from states and directions to the weights of the adapter.
        scorer: scorer of the task.
        model_id: model id of the base model, 32 bytes.
        forward: engine that scores rows.
        first_block: index of the lowest block with an adapter.
        trunk_cache: cache of the outputs below this block; None with only a readout.
        torch_device: torch device of the model.
        backend: replay backend, on the model's torch device if that is faster than the CPU.
        decodes_answers: whether the steps' objective is a metric of decoded answers.
        tokenize: function that turns an example into a prompt. Runtimes with the same weights share
            it.
    """

    tokenize: ExampleTokenizer
    _deciding: threading.Lock

    def __init__(
        self,
        config: RunConfig,
        model: LoadedModel,
        task: Task,
        examples: ExampleReader,
        predecessor: "ModelRuntime | None" = None,
    ) -> None:
        check_features({"task": kind_of(task)} | config.features, f"task {task.name!r}")
        self.decodes_answers = decodes_answers(config.objective, task)
        self.config, self._model, self._task, self._examples = config, model, task, examples
        base = model.base.copy_sharing_weights()
        self.model_id = base.model_id
        self.torch_device = torch.device(config.model.torch_device)
        self._stream = model.make_stream(base)
        if self._stream is not None and config.gradients == "exact":
            raise ConfigError(NO_STREAMED_GRADIENTS)
        # Take the turn before the lock: training waits for questions, which also need the lock.
        with forward_pass(), predecessor.tokenize.lock if predecessor else nullcontext():
            self.scorer = make_scorer(base, task, config.model.max_length, only_compares(config))
        settings = config.adapter
        adapter = inject(base, settings, self.scorer.labels)
        self._adapter = adapter
        self.layout, self.first_block = adapter.layout, adapter.first_block
        self.weight_map = WeightMap(adapter.start, adapter.basis, self.torch_device)
        self.trunk_cache: TrunkCache | None = None
        self._representations: RepresentationStore | None = None
        self._deciding = predecessor._deciding if predecessor else threading.Lock()
        self.tokenize = predecessor.tokenize if predecessor else ExampleTokenizer(self.scorer)
        if predecessor is not None and self._trunk_inputs == predecessor._trunk_inputs:
            self.trunk_cache = predecessor.trunk_cache
            if self._first_pass_inputs == predecessor._first_pass_inputs:
                self._representations = predecessor._representations
        self.backend: Backend = (
            predecessor.backend
            if predecessor is not None and predecessor.config is config
            else backend_for(self.torch_device, config.threads)
        )
        # A cache saves little for a fleet, whose clients use each example once or twice.
        room = 0 if config.fleet.devices and settings.inner_layers else config.trunk_cache
        folder = Path(config.trunk_cache_folder) if config.trunk_cache_folder else None
        if settings.inner_layers and self.trunk_cache is None:
            self.trunk_cache = make_trunk_cache(base, self.first_block, room, folder)
        if not settings.inner_layers and self._representations is None:
            self._representations = make_representation_store(base, self.scorer, room, folder)
        self.forward = make_forward(
            base,
            task,
            self.scorer,
            self.tokenize,
            adapter,
            settings.damping,
            streamed=self._stream is not None,
            cache=self.trunk_cache,
            store=self._representations,
            micro_batch=lambda: self.schedule.micro_batch or EVALUATION_MICRO_BATCH,
        )

    def examples(self, client_count: int) -> Sequence[Example]:
        """Return the training examples of the task; long plain texts are split into windows."""
        return self.tokenize.windows(self._examples(client_count))

    @property
    def has_readout_alone(self) -> bool:
        """True if only a readout is trained, so that the model runs once per example."""
        return isinstance(self.forward, ReadoutForward)

    def texts_to_measure(self) -> Sequence[Prompt]:
        """Return the texts that a model with only a readout reads before its first example."""
        return self.forward.texts_to_measure() if isinstance(self.forward, ReadoutForward) else ()

    @property
    def passes(self) -> int:
        """Number of rows, examples times perturbations, that went through the model so far."""
        return self.forward.passes

    def make_pass(self) -> Callable[[Sequence[Prompt], int], None]:
        """Return a function that runs the model over prompts for a measurement.

        The function takes prompts and a number of directions. Adapters inside the model run under
        both perturbations of each direction, or unperturbed if the number is 0. For a
        runtime with only a readout, the number has no effect. These passes do not count in
        `passes`. Their results are cached only inside the returned function.
        """
        if isinstance(forward := self.forward, ReadoutForward):
            return lambda prompts, queries: forward.run_pass(prompts)
        is_streamed, cache = self._stream is not None, MemoryCache(self.config.trunk_cache)
        base, scorer = self.scorer.base, self.scorer
        engine = make_forward_engine(base, self._adapter, scorer, is_streamed, cache)
        layout, center = self.layout, torch.zeros(self.layout.element_count)

        def run(prompts: Sequence[Prompt], queries: int) -> None:
            seeds = np.arange(queries, dtype=np.uint64)
            z = directions(seeds, layout.size, layout.distribution)
            moved = self.weight_map.directions(z) if queries else None
            placed = center.to(self.torch_device)
            engine.scores(Perturbations(layout, placed, moved, self.config.epsilon), prompts)

        return run

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Compute a readout's representations of all given prompts, always in the same passes.

        The rounding of a readout's scores then depends only on these prompts, and not on the
        batches in which they are used later. With adapters inside the model there is nothing to
        prepare.

        Args:
            prompts: all prompts of a client's split, or of the part of it that is used, in order.
        """
        if isinstance(self.forward, ReadoutForward):
            self.forward.prepare(prompts)

    def keep_only(self, parts: Sequence[Sequence[Prompt]]) -> None:
        """Discard the cached representations of all examples outside the given parts."""
        if self._representations is not None:
            self._representations.keep_only(parts)

    def features(self, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        """Return the features φ(h) of n prompts, the inputs of a readout: float32 [n, features].

        Raises:
            ConfigError: if there are adapters inside the model.
        """
        if not isinstance(self.forward, ReadoutForward):
            raise ConfigError(
                f"adapter.layers = {self.config.adapter.layers}: features change with the adapters "
                "inside the model; set adapter.layers to readout"
            )
        return self.forward.features(prompts)

    def copy_sharing_weights(self) -> Self:
        """Return a runtime with the same weights for another thread."""
        return type(self)(self.config, self._model, self._task, self._examples, self)

    def under(self, config: RunConfig) -> Self:
        """Return a runtime with the same weights under other settings of adapter and run.

        Args:
            config: settings with the same model, task and data as in this runtime. If the depth
                differs, the model is loaded again.
        """
        self.free_buffers()  # memory may not hold the staging buffers of two runtimes
        depth = config.adapter.depth
        is_same = depth == self.config.adapter.depth
        model = self._model if is_same else load_model(config.model, depth)
        return type(self)(config, model, self._task, self._examples, self)

    def free_buffers(self) -> None:
        """Free the memory that streamed blocks pass through, until the next pass."""
        if self._stream is not None:
            with forward_pass():
                self._stream.free_buffers()

    @property
    def base(self) -> BaseModel:
        """Base model without adapters, with its folder, family, tokenizer and context."""
        return self._model.base

    @property
    def task(self) -> Task:
        """Task to which the model is adapted."""
        return self._task

    @property
    def adapted_block_count(self) -> int:
        """Number of blocks from the lowest adapted block to the top."""
        return len(self._model.base.blocks) - self.first_block

    @property
    def score_inputs(self) -> dict[str, object]:
        """All values on which the scores of prompts depend, except the state of the adapter."""
        return {"model": model_inputs(self.base), "scorer": scorer_inputs(self.scorer)}

    @property
    def label_count(self) -> int:
        """Number of labels of the task."""
        return self.scorer.labels

    @property
    def _trunk_inputs(self) -> tuple[object, ...]:
        """Settings that must be equal for two runtimes to share trunk outputs."""
        config = self.config
        return self.model_id, self.first_block, config.trunk_cache, config.trunk_cache_folder

    @property
    def _first_pass_inputs(self) -> tuple[object, ...]:
        """Settings that must be equal for two runtimes to share features.

        The settings of `_trunk_inputs` must be equal as well. Dampings with equal content are
        equal.
        """
        return self.layout.damping, self.config.examples_in_pass, self.config.memory_budget

    @cached_property
    def objective(self) -> Objective:
        """Objective of the steps."""
        return training_objective(self.config.objective, self.task)

    @cached_property
    def execution(self) -> Execution:
        """Schedule and threads of this run on this machine.

        At the first use they are decided, or read from the run's folder, and torch's number of
        threads is set. Passes that only measure do not count in `passes`.
        """
        config = self.config
        run_id = run_id_of(config, self.layout, self.model_id)

        def decide() -> Execution:
            examples, is_streamed = self.examples(config.data.clients), self._stream is not None
            training = sorted((e for e in examples if e.split == "train"), key=_letter_count)
            if isinstance(self.forward, ReadoutForward):
                usual = EVALUATION_MICRO_BATCH
                top = [self.tokenize(e) for e in training[-(config.examples_in_pass or usual) :]]
                first_pass = choose_first_pass(config, self.forward, top, usual, is_streamed)
                return Execution(first_pass, torch.get_num_threads())
            count = min(config.batch, len(training))
            spread = np.linspace(0, len(training) - 1, count).astype(int)
            typical = [self.tokenize(training[index]) for index in spread]
            longest = [self.tokenize(example) for example in training[-config.batch :]]
            benchmark = StepBenchmark(
                self.forward, self.layout, self.weight_map, config, typical, longest
            )
            schedule = choose_schedule(config, benchmark, is_streamed)
            return Execution(schedule, torch.get_num_threads())

        with self._deciding, forward_pass():  # other passes would distort the measurement
            before = self.forward.passes
            execution = read_or_decide_execution(run_folder(config, run_id), run_id, decide)
            self.forward.passes = before
        torch.set_num_threads(execution.threads)
        return execution

    def use_threads(self) -> None:
        """Set torch's number of threads to this run's, after another runtime has computed."""
        if "execution" in self.__dict__:
            torch.set_num_threads(self.execution.threads)

    @property
    def schedule(self) -> Schedule:
        """Schedule of a step, decided at the first use."""
        return self.execution.schedule

    def schedule_for(self, batch: int) -> Schedule:
        """Return the schedule of a step on a given number of examples.

        Its forward passes are no larger than those of a step on `RunConfig.batch` examples.
        """
        schedule = self.schedule
        limit = schedule.micro_batch or self.config.batch
        return schedule if batch <= limit else replace(schedule, micro_batch=limit)

    def scores(self, state: NDArray[np.int64], prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        """Return the scores of n prompts under a state, int64 [d]: float32 [n, labels]."""
        return self._scores(self.perturbation(state), prompts)

    def base_scores(self, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        """Return the scores of n prompts under the base model alone: float32 [n, labels]."""
        return self._scores(self.perturbation(None), prompts)

    def perturbation(self, state: NDArray[np.int64] | None) -> Perturbations:
        """Return the adapter of a state, int64 [d]; None gives zeros, and so the base model."""
        if state is None:
            weights = torch.zeros(self.layout.element_count, device=self.torch_device)
        else:
            weights = self.weight_map.center(torch.tensor(state))
        return Perturbations(self.layout, weights)

    def _scores(self, center: Perturbations, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
        size = EVALUATION_MICRO_BATCH
        if self.config.memory_budget:
            size = evaluation_batch_size(self.schedule, self.config, size)
        scores = self.forward.scores(center, prompts, Schedule("both", size), whole=True)
        return scores.reshape(scores.shape[1:])

    def check_layout(self, layout_hash: bytes) -> None:
        """Raise an error unless an instruction's layout is the layout of the adapter.

        Raises:
            LayoutError: if the layouts differ.
        """
        self.layout.check_hash(
            layout_hash, "use the same model and adapter settings on client and server"
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings and versions on which the results depend, for a hello."""
        return {
            "grouping": self.schedule.grouping,
            "micro_batch": self.schedule.micro_batch,
            "threads": self.execution.threads,
            "quantization": self.config.model.quantization,
            "dtype": self.config.model.dtype,
            "device": str(self.torch_device),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "replay": self.backend.name,
        }


class LoadedRun(NamedTuple):
    """A run's model and data on this machine.

    Attributes:
        runtime: model runtime.
        data: source of the clients' data.
    """

    runtime: ModelRuntime
    data: ClientDataSource

    def copy_sharing_weights(self) -> "LoadedRun":
        """Return the same run with a runtime for another thread."""
        return LoadedRun(self.runtime.copy_sharing_weights(), self.data)

    def under(self, config: RunConfig) -> "LoadedRun":
        """Return the same model and data under other settings; see `ModelRuntime.under`."""
        return LoadedRun(self.runtime.under(config), self.data)


def load_run(config: RunConfig, examples: ExampleReader | None = None) -> LoadedRun:
    """Load the model and the data of a run, and set torch's number of threads.

    Args:
        config: settings of the run.
        examples: function that returns the data; None means the data that the settings name.

    Raises:
        SamaraError: if the model, the task or the data cannot be used.
    """
    torch.set_num_threads(config.threads or cores())
    task = task_of(config)
    check_features({"task": kind_of(task)}, f"task {task.name!r}")  # before data and model are read
    examples = examples or example_reader(task, config.data)
    with return_freed_memory():
        model = load_model(config.model, config.adapter.depth)
    keep_freed_memory()
    runtime = ModelRuntime(config, model, task, examples)
    evaluated = config.evaluate.limit
    data = ClientDataSource(runtime.examples, config.data, runtime.tokenize, evaluated)
    return LoadedRun(runtime, data)


def only_compares(config: RunConfig) -> bool:
    """Return whether a run only compares the scores of a row with each other.

    This holds for all objectives over labels. A readout is an exception: its base model scores are
    computed once and cached, also for other runs, so they must be log-likelihoods.
    """
    return bool(config.adapter.inner_layers) and not config.adapter.has_readout


def _letter_count(example: Example) -> int:
    """Return the number of letters in an example's sequences, as an estimate of their tokens."""
    return max(1, len(example.answers)) * len(example.text) + sum(map(len, example.answers))
