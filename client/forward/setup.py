"""Set-up of a loaded model's scorer and forward engine."""

from collections.abc import Callable

import torch

from samara.client.forward.body import PerturbedBody
from samara.client.forward.readout import ReadoutForward, make_base_engine, make_readout
from samara.client.forward.representation_store import RepresentationStore
from samara.client.forward.resident import ResidentForward
from samara.client.forward.streamed import BlockwiseParameters, make_forward_engine
from samara.client.forward.trunk_cache import TrunkCache
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.protocol.layout import ADAPTER_GROUP, READOUT_GROUP
from samara.shared.tasks.kinds import Task
from samara.shared.tasks.rows import Example

EVALUATION_MICRO_BATCH = 16
"""Default number of examples in a forward pass of an evaluation."""

ForwardEngine = ResidentForward | ReadoutForward
"""An engine that scores prompts under perturbations.

`ReadoutForward` runs the model only once per example.
"""


def make_scorer(base: BaseModel, task: Task, max_length: int, compares: bool = False) -> Scorer:
    """Return the scorer for a model without adapters and a task.

    Args:
        base: the model.
        task: the task.
        max_length: maximum number of tokens in a sequence.
        compares: whether the scores of a row are only compared with each other. A language model's
            head is then computed only for the label words.

    Raises:
        SamaraError: if the model cannot answer the task.
    """
    # not inference mode, because gradients may use the scorer's tensors
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
    """Return the forward engine of a model with an adapter, which may be only a readout.

    Args:
        base: model with the adapter.
        task, scorer, tokenize, damping, streamed: as for `make_readout`.
        adapter: the adapter.
        cache: cache of the outputs of the layers below the adapters.
        parameters: parameters of a streamed model that are perturbed in place.
        store: store of representations for an adapter that is only a readout. The default store
            keeps the latest split.
        micro_batch: function that returns the maximum number of examples in a pass, for an adapter
            that is only a readout.
    """
    layout, readout = adapter.layout, None
    if layout.group(READOUT_GROUP):
        readout = make_readout(base, task, scorer, damping, tokenize, streamed)
    if readout is None or layout.group(ADAPTER_GROUP):
        return make_forward_engine(base, adapter, scorer, streamed, cache, parameters, readout)
    engine, kept = make_base_engine(base, scorer, streamed), store or RepresentationStore(0)
    return ReadoutForward(engine, layout, scorer.labels, readout, kept, micro_batch)
