"""Export of a readout: the model's damped representations, and the readout's description."""

import hashlib

import numpy as np
import torch

from samara.client.forward.readout import make_readout
from samara.client.training.client_data import ExampleTokenizer
from samara.devices.phone.lowering import Method, Methods
from samara.devices.phone.manifest import ReadoutDescription, SelfCheck
from samara.devices.phone.program import (
    Candidates,
    DirectionsModule,
    RepresentationModule,
    Unscored,
    Words,
)
from samara.shared.model.damping import Damping
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import LABEL_BIAS
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import EncoderScorer, HeadlessScorer, Scorer
from samara.shared.protocol.directions import directions
from samara.shared.protocol.layout import LABEL_BIAS_GROUP, Layout
from samara.shared.tasks.contrasts import contrasts
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask


class ReadoutParts:
    """The module and the description of a readout, whose damping is read or measured here.

    Args:
        base: base model, before its weights are quantized to 4 bits.
        task: task whose prompts are filled with random tokens.
        scorer: scorer of the model, which may be truncated.
        answers: answers to compare, as the program reads them.
        damping: value of ``adapter.damping``.
        layout: layout of the readout.

    Attributes:
        module: module that computes scores of the base model and features.
        description: description for the manifest.
    """

    def __init__(
        self,
        base: BaseModel,
        task: ClassificationTask | ChoiceTask,
        scorer: Scorer,
        answers: Words | Candidates | EncoderScorer,
        damping: str,
        layout: Layout,
    ) -> None:
        self._layout = layout
        source = layout.damping.source if layout.damping else "none"
        self._readout = make_readout(base, task, scorer, damping, ExampleTokenizer(scorer))
        measured = None if source == "none" else self._readout.load_damping()
        read = Unscored(scorer.labels) if isinstance(scorer, HeadlessScorer) else answers
        self.module = RepresentationModule(base, read, measured)
        self.description = ReadoutDescription(
            labels=scorer.labels,
            features=base.features,
            contrasts=contrasts(scorer.labels).tolist(),
            damping=source,
            damping_sha256=_damping_hash(measured) if measured else "",
        )

    def methods(self, check: SelfCheck, replay_seeds: int, least: int) -> Methods:
        """Return the program's methods ``forward`` and ``directions``.

        Args:
            check: self-check, whose batch has the maximum number of tokens.
            replay_seeds: number of directions in a call of ``directions``.
            least: minimum tokens in a call of ``forward``; 0 if all calls have the maximum.
        """
        ids = torch.tensor(check.ids)
        positions = torch.tensor(check.positions)
        sizes = None
        if least:
            tokens = torch.export.Dim("tokens", min=least, max=ids.shape[-1])
            sizes = {ids.ndim - 1: tokens}, None
        seeds = torch.zeros(replay_seeds, dtype=torch.int64)
        return {
            "forward": Method(self.module, (ids, positions), sizes),
            "directions": Method(DirectionsModule(self._layout), (seeds,)),
        }

    def losses(self, check: SelfCheck) -> list[list[float]]:
        """Return the losses [2q][B] of a check's batch at the zero state, in nats."""
        seeds = np.array(check.seeds, np.uint64)
        z = directions(seeds, self._layout.size, self._layout.distribution)
        center = np.zeros(self._layout.size, np.float32)
        perturbations = Perturbations.from_arrays(self._layout, center, z, check.epsilon)
        base_scores, features = self.module(torch.tensor(check.ids), torch.tensor(check.positions))
        scores = base_scores + self._readout.added_scores(perturbations, features)
        if self._layout.group(LABEL_BIAS_GROUP):
            scores = scores + perturbations.tensor(LABEL_BIAS).view(len(scores), 1, -1)
        labels = torch.tensor(check.labels).expand(len(scores), -1)[..., None]
        losses: list[list[float]] = (
            -torch.log_softmax(scores.double(), dim=2).gather(2, labels)[..., 0]
        ).tolist()
        return losses


def _damping_hash(damping: Damping) -> str:
    numbers = [damping.mean.numpy(), damping.root.numpy()]
    return hashlib.sha256(b"".join(n.astype("<f4").tobytes() for n in numbers)).hexdigest()
