"""Activation checkpointing: block by block, the backward pass computes activations again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from samara.client.forward.supervised import replace_forward


@contextmanager
def checkpointing(
    blocks: Sequence[nn.Module],
    recomputing: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[None]:
    """Have forward passes inside the context keep no more than each block's inputs.

    The backward pass runs a block's forward pass again before its own (Chen et al., "Training deep
    nets with sublinear memory cost", 2016), with the same bits. The last block keeps its
    activations: the backward pass begins with it, so that nothing would be gained.

    Args:
        blocks: blocks of the model, lowest first; dropout must be off.
        recomputing: function that returns the context which a block's second forward pass needs.
    """

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), recomputing()

    with ExitStack() as stack:
        for block in blocks[:-1]:
            recomputed = partial(
                checkpoint,
                block.forward,
                use_reentrant=False,
                context_fn=contexts,
                preserve_rng_state=False,
            )
            stack.enter_context(replace_forward(block, recomputed))
        yield
