"""The setup of a tuning run: model, task, drawn examples, and evaluation on a split."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from samara.client.forward.grouping import Schedule
from samara.client.forward.peak_memory import keep_freed_memory
from samara.client.forward.readout import ReadoutForward
from samara.client.forward.representation_store import make_representation_store
from samara.client.forward.resident import ResidentForward
from samara.client.forward.setup import EVALUATION_MICRO_BATCH, ForwardEngine, make_forward
from samara.client.forward.streamed import BlockwiseParameters, make_forward_engine
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.client.spaces.space import ScoreFunction
from samara.client.tuning.methods import LOW_RANK, ZEROTH_ORDER
from samara.client.tuning.model_setup import ModelSetup
from samara.client.tuning.settings import TuneSettings
from samara.shared.errors import ConfigError, TaskError
from samara.shared.model.layer_selection import chosen_blocks
from samara.shared.model.lora_fa import Adapter, empty_adapter, inject
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.directions import batch_order
from samara.shared.settings.common import TRUNK_CACHE_BYTES
from samara.shared.tasks.data import check_labels, load_examples
from samara.shared.tasks.embedded import check_data_is_given, embedded_examples
from samara.shared.tasks.kinds import ClassificationTask, GenerationTask, Task
from samara.shared.tasks.label_scores import Confusion, evaluation_column
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.metrics import answer_metric, label_metric
from samara.shared.tasks.objectives import CROSS_ENTROPY, ObjectiveName, objective_for
from samara.shared.tasks.profiled_loss import PROFILED
from samara.shared.tasks.rows import Example
from samara.shared.tasks.sampling import sample_each_label, sample_splits
from samara.shared.tasks.sources import SPLITS

log = logging.getLogger("samara.tune")

EMBEDDED_WRITERS = 32
"""Number of writers of generated data. They write as many messages as a run draws by default."""

Evaluate = Callable[[ScoreFunction], NDArray[np.float32]]
"""A function that calls a score function with the adapters of one state.

`Space.evaluate` without seeds is such a function.
"""
ScoresAndAnswers = tuple[NDArray[np.float32], list[str]]
"""Scores, float32 [n, width], and decoded answers: n in a generation task, none in other tasks."""


@dataclass(frozen=True, eq=False)
class TaskSplit:
    """The examples and prompts of one split.

    Attributes:
        examples: the n examples.
        prompts: prompts with the correct answer, or with all candidates.
        open_prompts: prompts without an answer for a generation task; otherwise empty.
        labels: int64 [n], indices of the correct answers.
    """

    examples: tuple[Example, ...]
    prompts: tuple[Prompt, ...]
    open_prompts: tuple[Prompt, ...]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class EvaluationResult:
    """The loss and the metric of a model on a split.

    Attributes:
        examples: number of examples.
        loss: mean cross-entropy; for a generation task, mean loss per token.
        metric: value of the task's metric.
        auc: area under the ROC curve; None unless the task has two labels.
    """

    examples: int
    loss: float
    metric: float
    auc: float | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key (metric, −loss), which is greater for a better result."""
        return (self.metric, -self.loss)


class TuningSetup(ModelSetup):
    """The model, task and data of a run, which all methods of `samara tune` share.

    Attributes:
        examples: drawn examples of all splits.
        goal: name of the objective.
        is_profiled: whether the objective is the profiled cross-entropy.
        splits: splits by name.
        objective: function that reduces scores to a loss.
        decodes: whether the training loss is a metric of decoded answers rather than of scores.
    """

    def __init__(self, settings: TuneSettings) -> None:
        """Load model, task and data.

        Raises:
            SamaraError: if model, task or data cannot be used, or do not fit together.
        """
        super().__init__(settings)
        default: ObjectiveName = (
            "likelihood" if isinstance(self.task, GenerationTask) else "cross-entropy"
        )
        self.goal: ObjectiveName = default if settings.objective == "auto" else settings.objective
        self.is_profiled = self.goal == PROFILED
        if settings.gradients == "exact" and self.goal not in (CROSS_ENTROPY, PROFILED):
            raise ConfigError(
                "gradients: exact gradients exist only for the cross-entropy, but the objective "
                f"is {self.goal}; set gradients to forward-mode or differences"
            )
        self.decodes = isinstance(self.task, GenerationTask) and self.goal == "metric"
        self.objective = objective_for(self.task, default if self.decodes else self.goal)
        self._evaluation_loss = objective_for(self.task, default)
        self.examples = draw_examples(settings, self.task)
        self.load()
        self._representations = make_representation_store(self.base, self.scorer, TRUNK_CACHE_BYTES)
        self._trunk_cache = make_trunk_cache(
            self.base, self._trunk_block_count(), TRUNK_CACHE_BYTES
        )
        keep_freed_memory()
        self.splits = {
            name: self._make_split([example for example in self.examples if example.split == name])
            for name in SPLITS
        }

    @property
    def _only_compares(self) -> bool:
        settings = self.settings
        compares = settings.optimizer in ZEROTH_ORDER and self.goal != "likelihood"
        return compares and not settings.adapter.has_readout

    def make_forward(
        self,
        adapter: Adapter,
        parameters: BlockwiseParameters | None = None,
    ) -> ForwardEngine:
        """Return a forward engine of the loaded model with an adapter.

        All engines of this setup share a cache. For a readout alone it contains representations,
        for other adapters the outputs of the trunk below them.

        Args:
            adapter: adapter in the model.
            parameters: parameters of a streamed model that are perturbed in place.
        """
        settings = self.settings
        forward = make_forward(
            self.base,
            self.task,
            self.scorer,
            self._tokenize,
            adapter,
            settings.adapter.damping,
            streamed=self.stream is not None,
            cache=self._trunk_cache,
            parameters=parameters,
            store=self._representations,
            micro_batch=lambda: settings.micro_batch or EVALUATION_MICRO_BATCH,
        )
        if isinstance(forward, ReadoutForward):
            forward.prepare(self.splits["train"].prompts)
        return forward

    def base_engine(self) -> tuple[ResidentForward, Evaluate]:
        """Return a forward engine of the base model, and a function that evaluates with it.

        The engine batches sequences in the same way as the trained model's engine. The last bits of
        a trunk's output depend on which sequences run together, and zero adapters must not change a
        bit of a score.
        """
        adapter, no_adapters = empty_adapter(self._trunk_block_count())
        streamed = self.stream is not None
        forward = make_forward_engine(self.base, adapter, self.scorer, streamed, self._trunk_cache)
        return forward, lambda score: score(no_adapters)

    def batch(self, step: int, query: int = 0, examples: int = 0) -> NDArray[np.int64]:
        """Return the indices of a step's examples, int64 [B], or fewer if there are fewer examples.

        Args:
            step: index of the step, from 0.
            query: index of the direction, if every direction has a separate batch.
            examples: number of examples; 0 means B.
        """
        count = len(self.splits["train"].labels)
        return batch_order(self.root, query, step, count)[: examples or self.settings.batch]

    def rows(self, batch: NDArray[np.int64]) -> tuple[list[Prompt], NDArray[np.int64]]:
        """Return prompts and labels of some training examples, in the form that steps score.

        The likelihood of an answer needs no pass over other candidates, so only the correct
        candidate is included. A label bias or a readout adds to scores by position, and then all
        candidates are included.

        Args:
            batch: indices of n training examples, int64 [n].

        Returns:
            n prompts, and labels, int64 [n].
        """
        train = self.splits["train"]
        adapter = self.settings.adapter
        prompts = [train.prompts[index] for index in batch]
        labels = train.labels[batch]
        by_place = adapter.label_bias or adapter.has_readout
        if self.goal != "likelihood" or by_place or not prompts[0].targets:
            return prompts, labels
        right = [prompt.only(label) for prompt, label in zip(prompts, labels, strict=True)]
        return right, np.zeros_like(labels)

    def evaluate_base(self, split: TaskSplit) -> EvaluationResult:
        """Evaluate the base model on a split, without training."""
        return self.result_of(*self.base_scores(split), split)

    def base_scores(self, split: TaskSplit) -> ScoresAndAnswers:
        """Return the base model's scores of a split; for a generation task, also its answers."""
        if not self.settings.adapter.inner_layers:  # base scores of a readout are cached
            adapter = inject(self.base, self.settings.adapter, self.scorer.labels)
            forward = self.make_forward(adapter)
            assert isinstance(forward, ReadoutForward)
            log.info("evaluating %d examples", len(split.labels))
            return forward.base_scores(split.prompts), []
        return self._scores(*self.base_engine(), split)

    def evaluate(
        self, forward: ForwardEngine, evaluate: Evaluate, split: TaskSplit
    ) -> EvaluationResult:
        """Evaluate one state of the model on a split.

        Args:
            forward: forward engine.
            evaluate: function that calls a score function with the state's adapters.
            split: split of the data.
        """
        return self.result_of(*self._scores(forward, evaluate, split), split)

    def _scores(
        self, forward: ForwardEngine, evaluate: Evaluate, split: TaskSplit
    ) -> ScoresAndAnswers:
        log.info("evaluating %d examples", len(split.labels))
        size = EVALUATION_MICRO_BATCH
        answers: list[str] = []

        def score(adapters: PerturbedAdapters) -> NDArray[np.float32]:
            if isinstance(forward, ResidentForward) and split.open_prompts:
                answers.extend(forward.decode_answers(adapters, split.open_prompts, size))
            return forward.scores(adapters, split.prompts, Schedule("both", size))

        return evaluate(score)[0], answers

    def result_of(
        self, scores: NDArray[np.float32], answers: Sequence[str], split: TaskSplit
    ) -> EvaluationResult:
        """Return loss and metric of a split, computed from scores or from decoded answers.

        Args:
            scores: float32 [n, width].
            answers: n decoded answers of a generation task; otherwise empty.
            split: split to which the scores belong.
        """
        loss = float(self._evaluation_loss(scores[None], split.labels)[0])
        area = None
        if isinstance(self.task, GenerationTask):
            accepted = [example.answers for example in split.examples]
            metric = answer_metric(self.task, answers, accepted)
        else:
            confusion = Confusion.from_predictions(
                split.labels, scores.argmax(axis=1), scores.shape[1]
            )
            metric = label_metric(self.task, confusion)
            if isinstance(self.task, ClassificationTask) and scores.shape[1] == 2:
                area = evaluation_column("", scores, split.labels).auc
        return EvaluationResult(len(split.labels), loss, metric, area)

    def _trunk_block_count(self) -> int:
        """Return the number of blocks below the lowest block that the method perturbs."""
        settings = self.settings
        if settings.optimizer not in ZEROTH_ORDER or settings.space not in LOW_RANK:
            return 0
        chosen = chosen_blocks(settings.adapter.inner_layers, len(self.base.blocks))
        return min(chosen, default=0)

    def _tokenize(self, example: Example) -> Prompt:
        return self.scorer.prompt(example.text, example.answers, example.cut)

    def _make_split(self, examples: Sequence[Example]) -> TaskSplit:
        prompt = self.scorer.prompt
        decoded = examples if isinstance(self.task, GenerationTask) else []
        return TaskSplit(
            tuple(examples),
            tuple(map(self._tokenize, examples)),
            tuple(prompt(example.text, (), example.cut) for example in decoded),
            np.array([example.label for example in examples], np.int64),
        )


def draw_examples(settings: TuneSettings, task: Task) -> list[Example]:
    """Return the examples of a tuning run, drawn by its seed.

    Raises:
        DataError: if the data are missing or cannot be read.
        TaskError: if examples per label are requested for a task without labels.
    """
    data = settings.data
    if data.per_label and not isinstance(task, ClassificationTask):
        raise TaskError(
            f"task {task.name!r} is a {task.kind}, whose rows have no common labels; leave "
            "data.per-label out"
        )
    check_data_is_given(task, data.path)
    if data.path == EMBEDDED_DATA:
        examples = embedded_examples(task, EMBEDDED_WRITERS, settings.seed)
    else:
        examples = load_examples(data.path, task, settings.seed)
        check_labels(examples, task, data.path)
    if data.per_label:
        return sample_each_label(examples, data.per_label, data.test, settings.seed)
    counts: Mapping[str, int] = {
        "train": data.train,
        "validation": data.validation,
        "test": data.test,
    }
    return sample_splits(examples, counts, settings.seed)
