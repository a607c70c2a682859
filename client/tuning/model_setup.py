"""The setup of a tuning run without the data: model, task and seeds."""

import gc

import torch

from samara.client.forward.peak_memory import return_freed_memory
from samara.client.forward.setup import make_scorer
from samara.client.streaming.loading import load_model
from samara.client.tuning.classifier import ClassifierScorer, Weights
from samara.client.tuning.settings import TuneSettings
from samara.shared.model.scorers import Scorer
from samara.shared.protocol.directions import round_root
from samara.shared.settings.features import TUNING_EXCLUSIONS, check_features, kind_of
from samara.shared.tasks.catalog import task_of
from samara.shared.tasks.kinds import Task


class ModelSetup:
    """The model, task and seeds of a tuning run; the model is loaded by `load`.

    Attributes:
        settings: complete settings.
        task: task to train and evaluate.
        root: seed from which batches and directions are derived.
        loaded: loaded model; it includes the block stream if blocks are streamed.
        base: base model.
        stream: block stream; None if the whole model is in memory.
        scorer: scorer of the model.
    """

    def __init__(self, settings: TuneSettings) -> None:
        """Read the task.

        Raises:
            SamaraError: if the task cannot be used, or does not fit the settings.
        """
        torch.set_num_threads(settings.threads)
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
        self.settings = settings
        self.root = round_root(settings.seed, 0, 0)
        self.task: Task = task_of(settings)
        features = settings.features | {"task": kind_of(self.task)}
        check_features(features, f"task {self.task.name!r}", TUNING_EXCLUSIONS)
        self._classifier: Weights | None = None

    @property
    def _only_compares(self) -> bool:
        """Return whether the scores of a row are only compared with each other."""
        return False

    def load(self) -> None:
        """Load the model, or load it again unchanged.

        A classifier in place of label words starts with the weights from `begin_classifier`.

        Raises:
            SamaraError: if the model cannot be used.
        """
        model = self.settings.model
        with return_freed_memory():
            self.loaded = load_model(model, self.settings.adapter.depth)
        self.base, self.stream = self.loaded.base, self.loaded.make_stream(self.loaded.base)
        most = model.max_length
        compares = self._only_compares
        self.scorer: Scorer = make_scorer(self.base, self.task, most, compares)
        if self.settings.classifier != "label-words":
            asks = self.settings.classifier == "linear-probe"
            self.scorer = scorer = ClassifierScorer(self.base, self.task, most, self.scorer, asks)
            if self._classifier is not None:
                scorer.begin_at(self._classifier)

    def begin_classifier(self, weights: Weights) -> None:
        """Set the initial weights of the classifier, for this and later loads of the model."""
        assert isinstance(self.scorer, ClassifierScorer)
        self.scorer.begin_at(weights)
        self._classifier = weights

    def unload(self) -> None:
        """Free the model's memory before it is loaded again."""
        if self.stream is not None:
            self.stream.free_buffers()
        del self.loaded, self.base, self.stream, self.scorer
        gc.collect()  # modules and their hooks form reference cycles
