"""The forward set-up of a loaded model: its scorer, and the engine that scores with an adapter."""

from collections.abc import Callable

import torch

from samara.client.forward.body import PerturbedBody
from samara.client.forward.readout import ReadoutForward, make_base_engine, make_readout
from samara.client.forward.representation_store import RepresentationStore
from samara.client.forward.resident import ResidentForward
from samara.client.forward.streamed import BlockwiseParameters, make_forward_engine
from samara.client.forward.trunk_cache import TrunkCache
from samara.shared.layout import ADAPTER_GROUP, READOUT_GROUP
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.rows import Example

EVALUATION_MICRO_BATCH = 16
"""Examples in a forward pass of an evaluation."""

ForwardEngine = ResidentForward | ReadoutForward
"""Scores prompts under perturbations; the second one runs the model once per example."""


def make_scorer(base: BaseModel, task: Task, max_length: int, compares: bool = False) -> Scorer:
    """Make the scorer of a model without adapters and a task.

    Args:
        base: the model.
        task: the task.
        max_length: most tokens of a sequence.
        compares: whether the scores of a row are only compared with each other, so that of a
            language model's head the label words' rows are enough.

    Raises:
        SamaraError: if the model cannot answer the task.
    """
    # not inference mode: gradients may flow past what a scorer keeps
    with torch.no_grad():
        return scorer_for(base, task, max_length, PerturbedBody(base, 0), compares)


def make_forward(
    base: BaseModel,
    task: Task,
    scorer: Scorer,
    tokenize: Callable[[Example], Prompt],
    adapter: Adapter,
    damping: str,
    *,
    streamed: bool = False,
    cache: TrunkCache | None = None,
    parameters: BlockwiseParameters | None = None,
    store: RepresentationStore | None = None,
    micro_batch: Callable[[], int] = lambda: EVALUATION_MICRO_BATCH,
) -> ForwardEngine:
    """Make the forward engine of a model with an adapter, a readout alone or others.

    Args:
        base: model that the adapter is in.
        task, scorer, tokenize, damping, streamed: as for `make_readout`.
        adapter: the adapter.
        cache: cache of the outputs of the layers below the adapters.
        parameters: parameters that are perturbed in place, of a streamed model.
        store: store of the representations of a readout alone; by default the latest split's.
        micro_batch: function that returns the most examples in a pass of a readout alone.
    """
    layout, readout = adapter.layout, None
    if layout.group(READOUT_GROUP):
        readout = make_readout(base, task, scorer, damping, tokenize, streamed)
    if readout is None or layout.group(ADAPTER_GROUP):
        return make_forward_engine(base, adapter, scorer, streamed, cache, parameters, readout)
    engine, kept = make_base_engine(base, scorer, streamed), store or RepresentationStore(0)
    return ReadoutForward(engine, layout, scorer.labels, readout, kept, micro_batch)
