"""A network's own head, applied only to the positions that are read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import ModelError
from shared.model.loading import BaseModel

VOCABULARY_TILE_BYTES = 32 * 2**20
"""Logits that are held at a time."""


def log_likelihoods(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    supervised: Sequence[Sequence[int]],
    tokens: list[list[int]],
) -> Tensor:
    """Of w wanted tokens at every position that is read: float32 [P, positions, w].

    Args:
        base: the model.
        hidden: [P·m, S, hidden], m sequences per point, points outermost.
        lengths: int64 [m], tokens of each sequence.
        supervised: per sequence, the positions that are read.
        tokens: per position in this order, the w tokens.
    """
    by_perturbation = hidden.view(-1, len(lengths), *hidden.shape[1:])
    sequences = [index for index, places in enumerate(supervised) for _ in places]
    positions = [place for places in supervised for place in places]
    read = by_perturbation[:, sequences, positions]
    wanted = torch.tensor(tokens, device=hidden.device).expand(len(read), -1, -1).flatten(0, 1)
    found, start = [], 0
    for logits in tiled_logits(base, read.flatten(0, 1)):
        of_some = wanted[start : start + len(logits)]
        found.append(logits.gather(1, of_some) - logits.logsumexp(1, keepdim=True))
        start += len(logits)
    return torch.cat(found).view(*read.shape[:2], -1)


def tiled_logits(base: BaseModel, hidden: Tensor) -> Iterator[Tensor]:
    """Logits of hidden states [n, hidden], float32 [some, vocabulary] at a time.

    The vocabulary is long, so those of a few positions exist at a time (P-RGE, appendix A.8).
    """
    tile = max(1, VOCABULARY_TILE_BYTES // (4 * int(base.network.config.vocab_size)))
    for some in torch.split(hidden, tile):
        yield _head(base, some)


def _head(base: BaseModel, hidden: Tensor) -> Tensor:
    """The network's own head applied to hidden states [n, hidden]: float32 [n, vocabulary].

    The network runs with its body replaced by these states, so that whatever a family does
    between body and vocabulary happens here too.
    """
    flat = hidden[:, None]
    ids = torch.zeros(flat.shape[:2], dtype=torch.long, device=flat.device)
    with _body_returns(base.body, flat) as calls:
        logits: Tensor = base.network(input_ids=ids).logits
    if not calls:
        raise ModelError(f"{base.folder}: its head does not call the body that was found")
    return logits[:, 0].float()


@contextmanager
def _body_returns(body: nn.Module, hidden: Tensor) -> Iterator[list[None]]:
    """The body returns this; yields a list with an entry per time that it was asked."""
    from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

    calls: list[None] = []

    def answer(*_: Any, **__: Any) -> Any:
        calls.append(None)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden)

    body.forward = answer
    try:
        yield calls
    finally:
        del body.forward
