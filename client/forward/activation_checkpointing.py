"""Activation checkpointing: a backward pass that recomputes activations block by block."""

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
    """Make forward passes inside the context keep only the inputs of each block.

    The backward pass recomputes a block's activations, with the same bits, when it reaches the
    block (Chen et al., "Training deep nets with sublinear memory cost", 2016). The last block keeps
    its activations: the backward pass begins there, so recomputing them would save no memory.

    Args:
        blocks: blocks of the model, lowest first; dropout must be off.
        recomputing: function that returns the context for a block's second forward pass.
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
