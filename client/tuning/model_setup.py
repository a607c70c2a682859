"""The model of a tuning run with its task and its seeds: all that a run has besides its data."""

import gc

import torch

from samara.client.forward.setup import make_scorer
from samara.client.streaming.loading import load_model
from samara.client.tuning.classifier import ClassifierScorer, Weights
from samara.client.tuning.settings import TuneSettings
from samara.shared.directions import round_root
from samara.shared.features import TUNING_EXCLUSIONS, check_features, kind_of
from samara.shared.model.scorers import Scorer
from samara.shared.tasks.catalog import task_of
from samara.shared.tasks.kinds import Task


class ModelSetup:
    """The model, task and seeds of a tuning run; `load` loads the model.

    Attributes:
        settings: settings without open values.
        task: task that is trained and evaluated.
        root: seed that batches and directions are derived from.
        loaded: loaded model, with its blocks if they are streamed.
        base: base model.
        stream: stream of its blocks, if they are streamed.
        scorer: scorer of the model.
    """

    def __init__(self, settings: TuneSettings) -> None:
        """Read the task.

        Raises:
            SamaraError: if it cannot be used, or does not go together with the settings.
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
        """Load the model, or load it again: base and scorer are then unchanged ones.

        A classifier in place of label words begins with what it has been given.

        Raises:
            SamaraError: if the model cannot be used.
        """
        model = self.settings.model
        self.loaded = load_model(model, self.settings.adapter.depth)
        self.base, self.stream = self.loaded.base, self.loaded.make_stream(self.loaded.base)
        most, compares = model.max_length, self._only_compares
        self.scorer: Scorer = make_scorer(self.base, self.task, most, compares)
        if self.settings.classifier != "label-words":
            asks = self.settings.classifier == "linear-probe"
            self.scorer = scorer = ClassifierScorer(self.base, self.task, most, self.scorer, asks)
            if self._classifier is not None:
                scorer.begin_at(self._classifier)

    def begin_classifier(self, weights: Weights) -> None:
        """Set what the classifier begins with, now and whenever the model is loaded again."""
        assert isinstance(self.scorer, ClassifierScorer)
        self.scorer.begin_at(weights)
        self._classifier = weights

    def unload(self) -> None:
        """Free the model's memory before it is loaded again."""
        if self.stream is not None:
            self.stream.free_buffers()
        del self.loaded, self.base, self.stream, self.scorer
        gc.collect()  # modules and their observers refer to each other
