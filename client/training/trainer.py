"""The trainer: a loaded model with its data, which trains and evaluates sessions on request."""

import copy
import json
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from client.forward.body import PerturbedBody
from client.forward.grouping import Schedule
from client.forward.peak_memory import keep_freed_memory
from client.forward.streamed import make_forward_engine
from client.forward.trunk_cache import TrunkCache, make_trunk_cache
from client.streaming.loading import load_model
from client.training.execution import Execution, Rehearsal, decided, evaluation_batch, kept
from client.training.local_steps import local_steps
from shared.config import RunConfig
from shared.errors import DataError, SamaraError, TaskError
from shared.frames.evaluation import EvaluationColumn
from shared.frames.hello import Hello
from shared.frames.instructions import Split, TrainInstruction
from shared.frames.report import Report
from shared.machine import cores
from shared.model.lora_fa import Perturbations, inject
from shared.model.replay_torch import backend_for
from shared.model.scorers import Prompt, scorer_for
from shared.replay import to_float32
from shared.runs import run_folder, run_id_of
from shared.sections import EMBEDDED_DATA
from shared.tasks.catalog import load_task
from shared.tasks.data import load_examples
from shared.tasks.embedded import embedded_examples
from shared.tasks.kinds import GenerationTask, Task
from shared.tasks.metrics import Confusion
from shared.tasks.objectives import cross_entropy
from shared.tasks.partition import partition
from shared.tasks.rows import Example, data_fingerprint

EVALUATION_MICRO_BATCH = 16


@dataclass(frozen=True, eq=False)
class Examples:
    """One split of a client's data as the model reads it.

    Attributes:
        prompts: n tokenized examples.
        labels: int64 [n].
    """

    prompts: tuple[Prompt, ...]
    labels: NDArray[np.int64]


class Trainer:
    """A model and the examples of all clients of this process; one thread at a time uses it.

    Attributes:
        layout: of the adapter.
        model_id: of the base model, 32 bytes.
        forward: the engine that scores rows.
        first_block: the lowest one that is adapted.
        torch_device: that the model is on.
        backend: what makes directions and replays, on the model's device where that is faster.
    """

    def __init__(self, config: RunConfig) -> None:
        """Load model, task and data.

        Raises:
            SamaraError: if any of them cannot be used.
        """
        self._config = config
        torch.set_num_threads(config.threads or cores())
        self._task = task = _countable(load_task(config.task))
        data = config.data
        generated = data.path == EMBEDDED_DATA
        self._examples = (
            None if generated else load_examples(data.path, task, data.seed, data.limit)
        )
        model = config.model
        self._loaded = load_model(model)
        keep_freed_memory()
        self.model_id = self._loaded.base.model_id
        self.torch_device = torch.device(model.torch_device)
        self.backend = backend_for(self.torch_device, config.threads)
        self._shares: dict[int, list[list[Example]]] = {}
        self._splits: dict[tuple[int, int, Split], Examples] = {}
        self._preparing = threading.RLock()
        self._cache: TrunkCache | None = None
        self._set_up()

    def copy_sharing_weights(self) -> Self:
        """The same weights and examples in a trainer for another thread."""
        other = copy.copy(self)
        other._set_up()
        return other

    def under(self, config: RunConfig) -> Self:
        """The same weights and examples with other settings of adapter and run.

        Args:
            config: as this trainer's in all that weights and examples depend on.
        """
        if self._stream is not None:
            self._stream.free_buffers()  # this trainer rests, and the other needs room
        other = copy.copy(self)
        if _trunk(config) != _trunk(self._config):
            other._cache = None
        other._config = config
        other.backend = backend_for(self.torch_device, config.threads)
        other.__dict__.pop("_execution", None)
        other._set_up()
        return other

    def _set_up(self) -> None:
        """Put adapters, scorer and body into modules of this trainer's own."""
        config, base = self._config, self._loaded.base.copy_sharing_weights()
        self._stream = self._loaded.make_stream(base)
        with torch.inference_mode():
            self._scorer = scorer_for(
                base, self._task, config.model.max_length, PerturbedBody(base, 0)
            )
        adapter = inject(base, config.adapter, self._scorer.labels)
        self.layout = adapter.layout
        folder = Path(config.trunk_cache_folder) if config.trunk_cache_folder else None
        self.first_block = first = adapter.first_block
        self._cache = self._cache or make_trunk_cache(base, first, config.trunk_cache, folder)
        streamed = self._stream is not None
        self.forward = make_forward_engine(base, adapter, self._scorer, streamed, self._cache)

    def share(self, client: int, clients: int, split: Split) -> Examples:
        """What one of so many clients holds.

        Args:
            client: which client.
            clients: how many share the examples; 0 if this one holds all of them.
            split: which of its examples.

        Raises:
            DataError: if some client would be left without training examples.
        """
        key = (client if clients else 0, clients, split)
        with self._preparing:
            if key not in self._splits:
                own = [e for e in self._held(client, clients) if e.split == split.name.lower()]
                self._splits[key] = Examples(
                    tuple(self._prompt(example) for example in own),
                    np.array([example.label for example in own], np.int64),
                )
            return self._splits[key]

    def hello(self, client: int, clients: int, round_number: int) -> Hello:
        """How a client of this trainer introduces itself."""
        facts: dict[str, Any] = {
            "clients": clients,
            "grouping": self.schedule.grouping,
            "micro_batch": self.schedule.micro_batch,
            "threads": self._execution.threads,
            "quantization": self._config.model.quantization,
            "dtype": self._config.model.dtype,
            "platform": platform.platform(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": version("transformers"),
            "device": str(self.torch_device),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "replay": self.backend.name,
        }
        held = self._held(client, clients)
        examples = sum(example.split == "train" for example in held)
        if clients:  # a hash of a person's own few examples could be recognised: it stays here
            facts["fingerprints"] = {
                name: data_fingerprint(e for e in held if e.split == name)
                for name in ("train", "validation", "test")
            }
        layout = self.layout.to_json()
        return Hello(
            client, examples, round_number, self.model_id, layout, json.dumps(facts, sort_keys=True)
        )

    @property
    def folder(self) -> Path:
        """Of the base model's files."""
        return self._loaded.base.folder

    @property
    def adapted_blocks(self) -> int:
        """How many blocks there are from the lowest adapted one on."""
        return len(self._loaded.base.blocks) - self.first_block

    @property
    def labels(self) -> int:
        """How many the task has; 0 if rows differ."""
        return self._scorer.labels

    @property
    def schedule(self) -> Schedule:
        """How a step runs, decided at the first need."""
        return self._execution.schedule

    def schedule_of(self, batch: int) -> Schedule:
        """How a step on so many examples runs, in passes no larger than those of a usual step."""
        own = self.schedule
        most = own.micro_batch or self._config.batch
        return own if batch <= most else replace(own, micro_batch=most)

    def train(
        self,
        instruction: TrainInstruction,
        state: NDArray[np.int64],
        client: int,
        clients: int,
        moving: NDArray[np.bool_] | None = None,
    ) -> Report:
        """K local steps from a state, which itself is not moved by them.

        Args:
            instruction: what to do.
            state: int64 [d], the model that the steps start from.
            client: which client.
            clients: of how many.
            moving: bool [d], the numbers that are tried; the others stay. None is all.

        Raises:
            LayoutError: if the instruction is for another layout.
            TrainingError: if a loss is not finite.
            ReplayError: if a local step does not fit the exact state.
        """
        (report,) = self.train_together(instruction, state, [client], clients, moving)
        if isinstance(report, SamaraError):
            raise report
        return report

    def train_together(
        self,
        instruction: TrainInstruction,
        state: NDArray[np.int64],
        indices: Sequence[int],
        clients: int,
        moving: NDArray[np.bool_] | None = None,
    ) -> list[Report | SamaraError]:
        """What `train` gives of several clients that stand at one state and share passes.

        Returns:
            For each client its report, or the error that it ended with.

        Raises:
            LayoutError: if the instruction is for another layout.
        """
        self.check_layout(instruction.layout_hash)
        return local_steps(self, instruction, state, indices, clients, moving)

    def scores(self, state: NDArray[np.int64], data: Examples) -> NDArray[np.float32]:
        """Scores of a client's examples under a state, float32 [n, labels]."""
        perturbations = Perturbations.from_arrays(
            self.layout, to_float32(state), device=self.torch_device
        )
        size = EVALUATION_MICRO_BATCH
        if self._config.memory_budget:
            size = evaluation_batch(self.schedule, self._config, size)
        scores = self.forward.scores(perturbations, data.prompts, Schedule("both", size))
        return scores.reshape(scores.shape[1:])

    def check_layout(self, layout_hash: bytes) -> None:
        """Refuse an instruction for another adapter.

        Raises:
            LayoutError: if the layouts differ.
        """
        self.layout.check_hash(layout_hash, "give both the same model and adapter settings")

    def _prompt(self, example: Example) -> Prompt:
        return self._scorer.prompt(example.text, example.answers, example.cut)

    def _held(self, client: int, clients: int) -> list[Example]:
        """All examples of one of so many clients; `clients` is 0 if it holds all there are."""
        with self._preparing:
            if clients not in self._shares:
                data, examples = self._config.data, self._all_examples(max(1, clients))
                self._shares[clients] = (
                    partition(examples, data.partition, clients, data.alpha, data.seed)
                    if clients
                    else [examples]
                )
            shares = self._shares[clients]
        if clients and client >= clients:
            raise DataError(f"client {client} does not exist: there are {clients}")
        return shares[client if clients else 0]

    def _all_examples(self, clients: int) -> list[Example]:
        """Of all clients; generated messages are written for as many as there are."""
        if self._examples is None:
            return embedded_examples(self._task, clients, self._config.data.seed)
        return self._examples

    @cached_property
    def _execution(self) -> Execution:
        """Decided at the first need, on a sample of all examples that this process holds."""
        config = self._config
        run_id = run_id_of(config, self.layout, self.model_id)

        def decide() -> Execution:
            everybody = self._all_examples(config.data.clients)
            examples = sorted((e for e in everybody if e.split == "train"), key=_letters)
            spread = np.linspace(0, len(examples) - 1, min(config.batch, len(examples))).astype(int)
            usual = [self._prompt(examples[index]) for index in spread]
            longest = [self._prompt(example) for example in examples[-config.batch :]]
            rehearsal = Rehearsal(self.forward, self.layout, config, usual, longest)
            return Execution(decided(config, rehearsal), torch.get_num_threads())

        with self._preparing:
            execution = kept(run_folder(config, run_id), run_id, decide)
        torch.set_num_threads(execution.threads)
        return execution


def figures(name: str, scores: NDArray[np.float32], labels: NDArray[np.int64]) -> EvaluationColumn:
    """Loss and confusion of scores [n, labels] against true labels [n]."""
    classes = scores.shape[1]
    if len(labels) == 0:
        return EvaluationColumn(name, 0.0, np.zeros((classes, classes), np.int64))
    loss = float(cross_entropy(scores[None], labels)[0])
    return EvaluationColumn(name, loss, Confusion.of(labels, scores.argmax(axis=1), classes).counts)


def _countable(task: Task) -> Task:
    """The task, if a federation can evaluate it by counting true against predicted labels.

    Raises:
        TaskError: otherwise.
    """
    if isinstance(task, GenerationTask) or not task.labels:
        what = "candidates differ from row to row" if task.kind == "choice" else "answers are texts"
        raise TaskError(
            f"task {task.name!r}: a federation evaluates by counts of labels, and here {what}; "
            "choose a classification, or a choice whose candidates the task lists"
        )
    return task


def _letters(example: Example) -> int:
    """How long an example is, about as long as its sequences are together."""
    return max(1, len(example.answers)) * len(example.text) + sum(map(len, example.answers))


def _weights_and_examples(config: RunConfig) -> tuple[object, ...]:
    """What they depend on."""
    return config.model, config.task, config.data


def _trunk(config: RunConfig) -> tuple[object, ...]:
    """What the cached outputs of the layers below the adapters depend on."""
    adapted = config.adapter.layers, config.adapter.projections
    return *adapted, config.trunk_cache, config.trunk_cache_folder


_of_thread = threading.local()
_loading = threading.Lock()


@lru_cache(maxsize=2)
def loaded(config: RunConfig) -> Trainer:
    """The trainer of a configuration; weights and examples are loaded once for many of them."""
    global _last
    if _last and _weights_and_examples(_last._config) == _weights_and_examples(config):
        torch.set_num_threads(config.threads or cores())
        _last = _last.under(config)
    else:
        _last = Trainer(config)
    return _last


_last: Trainer | None = None


def trainer_for(config: RunConfig) -> Trainer:
    """The calling thread's trainer of a configuration.

    Raises:
        SamaraError: if model, task or data cannot be used.
    """
    with _loading:
        first = loaded(config)
    if getattr(_of_thread, "first", None) is not first:
        _of_thread.first, _of_thread.trainer = first, first.copy_sharing_weights()
    trainer: Trainer = _of_thread.trainer
    return trainer
