"""Logits and log-likelihoods of a network's head, computed only at the needed positions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from samara.shared.errors import ModelError
from samara.shared.model.loading import BaseModel
from samara.shared.model.products import Linear
from samara.shared.model.quantized import Int8Head

VOCABULARY_TILE_BYTES = 32 * 2**20
"""Largest size of the logits in memory at one time, in bytes."""


def log_likelihoods(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    supervised: Sequence[Sequence[int]],
    tokens: list[list[int]],
) -> Tensor:
    """Return the log-likelihoods of w tokens at every supervised position, [P, positions, w].

    Args:
        base: the model.
        hidden: hidden states of m sequences for each of P perturbations, [P·m, S, hidden], ordered
            by perturbation.
        lengths: number of tokens of each sequence, int64 [m].
        supervised: for each sequence, the positions whose hidden states are used.
        tokens: w tokens for each of these positions, in this order.

    Returns:
        float32 [P, positions, w].
    """
    read, wanted = _read_positions(hidden, lengths, supervised, tokens)
    results = [
        logits.gather(1, tokens_here) - logits.logsumexp(1, keepdim=True)
        for logits, tokens_here in _logits_with_tokens(base, read, wanted)
    ]
    return torch.cat(results).view(*read.shape[:2], -1)


def word_logits(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    supervised: Sequence[Sequence[int]],
    words: Sequence[int],
) -> Tensor:
    """Return the logits of w words at every supervised position.

    Only the rows of the head for these words are used. At each position, the logits equal the
    log-likelihoods plus a constant that all words share.

    Args:
        base: the model, whose head has `separate_rows`.
        hidden, lengths, supervised: as for `log_likelihoods`.
        words: w tokens, the same at all positions.

    Returns:
        float32 [P, positions, w].
    """
    read = _positions_read(hidden, lengths, supervised)
    with _only_rows(base, words):
        return head_logits(base, read.flatten(0, 1)).view(*read.shape[:2], -1)


@torch.no_grad()
def separate_rows(base: BaseModel, words: Sequence[int]) -> bool:
    """Return whether the head computes each word's logit from that word's row alone.

    The function tests this on two hidden states. A head that adds a tensor of the vocabulary's
    size, for example, needs all rows.
    """
    linear = base.network.get_output_embeddings()
    if type(linear) not in (nn.Linear, Linear, Int8Head):
        return False
    hidden = torch.randn((2, base.hidden_size), generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(base.network.device, base.network.dtype)
    whole = head_logits(base, hidden)[:, list(words)]
    try:
        with _only_rows(base, words):
            alone = head_logits(base, hidden)
    except RuntimeError:  # The network adds a tensor of the vocabulary's size to the logits.
        return False
    exact = base.network.dtype == torch.float32
    return whole.shape == alone.shape and torch.allclose(
        whole, alone, rtol=1e-4 if exact else 2e-2, atol=1e-4 if exact else 2e-2
    )


@torch.no_grad()
def keep_rows(base: BaseModel, words: Sequence[int]) -> None:
    """Replace the head's last linear layer by the rows of the given words, in place.

    A token embedding table that is tied to the head stays whole.

    Args:
        base: the model, whose head has `separate_rows`.
        words: token ids of the rows to keep, in their new order.
    """
    linear = base.network.get_output_embeddings()
    rows = list(words)
    kept = nn.Linear(linear.in_features, len(rows), bias=linear.bias is not None)
    kept.weight = nn.Parameter(_rows(linear, rows))
    if linear.bias is not None:
        kept.bias = nn.Parameter(linear.bias[rows])
    base.network.set_output_embeddings(kept)


@contextmanager
def _only_rows(base: BaseModel, words: Sequence[int]) -> Iterator[None]:
    """Make the last linear layer return only the logits of the given words, in the given order."""
    linear = base.network.get_output_embeddings()
    rows = list(words)

    def some(hidden: Tensor) -> Tensor:
        bias = None if linear.bias is None else linear.bias[rows]
        return nn.functional.linear(hidden, _rows(linear, rows), bias)

    linear.forward = some
    try:
        yield
    finally:
        del linear.forward


def _rows(linear: Any, tokens: list[int]) -> Tensor:
    """Return the rows of a head for some tokens, [tokens, hidden]."""
    rows: Tensor = linear.rows(tokens) if isinstance(linear, Int8Head) else linear.weight[tokens]
    return rows


def mean_log_likelihoods(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    supervised: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    counts: Sequence[int],
) -> Tensor:
    """Return every sequence's mean log-likelihood per target token, grouped by row.

    Args:
        base: the model.
        hidden: hidden states of m sequences for each of P perturbations, [P·m, S, hidden], ordered
            by perturbation.
        lengths: number of tokens of each sequence, int64 [m].
        supervised: for each sequence, the positions whose hidden states are used.
        targets: token at each of these positions, for each sequence.
        counts: number of sequences of each of n rows.

    Returns:
        float32 [P, n, largest number of sequences of a row], padded with −∞.
    """
    wanted = [[token] for tokens in targets for token in tokens]
    picked = log_likelihoods(base, hidden, lengths, supervised, wanted)[..., 0]
    parts = torch.split(picked, [len(tokens) for tokens in targets], dim=1)
    means = torch.stack([part.mean(1) for part in parts], dim=-1)
    by_row = [row.T for row in torch.split(means, list(counts), dim=1)]
    return nn.utils.rnn.pad_sequence(by_row, padding_value=-torch.inf).permute(2, 1, 0)


def token_predictions(
    base: BaseModel,
    hidden: Tensor,
    lengths: Tensor,
    supervised: Sequence[Sequence[int]],
    tokens: list[int],
) -> tuple[Tensor, Tensor]:
    """Return the log-likelihood of one token per position, and whether that token is the likeliest.

    Args:
        base: the model.
        hidden: hidden states of m sequences for each of P perturbations, [P·m, S, hidden], ordered
            by perturbation.
        lengths: number of tokens of each sequence, int64 [m].
        supervised: for each sequence, the positions whose hidden states are used.
        tokens: token for each of these positions, in this order.

    Returns:
        Log-likelihoods, float32 [P, positions], and bool [P, positions]. If several tokens are
        equally likely, each of them counts as the likeliest.
    """
    read, wanted = _read_positions(hidden, lengths, supervised, [[token] for token in tokens])
    log_likelihood, is_likeliest = [], []
    for logits, tokens_here in _logits_with_tokens(base, read, wanted):
        own = logits.gather(1, tokens_here)
        log_likelihood.append(own - logits.logsumexp(1, keepdim=True))
        is_likeliest.append(own >= logits.amax(1, keepdim=True))
    shape = read.shape[:2]
    return torch.cat(log_likelihood).view(shape), torch.cat(is_likeliest).view(shape)


def _read_positions(
    hidden: Tensor,
    lengths: Tensor,
    supervised: Sequence[Sequence[int]],
    tokens: list[list[int]],
) -> tuple[Tensor, Tensor]:
    """Return the hidden states at supervised positions, and the tokens at these positions."""
    read = _positions_read(hidden, lengths, supervised)
    wanted = torch.tensor(tokens, device=hidden.device).expand(len(read), -1, -1).flatten(0, 1)
    return read, wanted


def _positions_read(hidden: Tensor, lengths: Tensor, supervised: Sequence[Sequence[int]]) -> Tensor:
    """Return the hidden states at supervised positions, [P, positions, hidden]."""
    by_perturbation = hidden.view(-1, len(lengths), *hidden.shape[1:])
    sequences = [index for index, positions in enumerate(supervised) for _ in positions]
    read_at = [position for positions in supervised for position in positions]
    return by_perturbation[:, sequences, read_at]


def _logits_with_tokens(
    base: BaseModel, read: Tensor, wanted: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of each tile of positions, with the tokens whose logits are needed there."""
    start = 0
    for logits in tiled_logits(base, read.flatten(0, 1)):
        yield logits, wanted[start : start + len(logits)]
        start += len(logits)


def tiled_logits(base: BaseModel, hidden: Tensor) -> Iterator[Tensor]:
    """Yield the logits of hidden states [n, hidden], float32 [positions, vocabulary] per tile.

    The vocabulary is large, so only a few positions' logits are in memory at one time (P-RGE,
    appendix A.8).
    """
    tile = max(1, VOCABULARY_TILE_BYTES // (4 * base.vocabulary))
    for part in torch.split(hidden, tile):
        yield head_logits(base, part)


def head_logits(base: BaseModel, hidden: Tensor) -> Tensor:
    """Apply the network's own head to hidden states [n, hidden], and return the logits.

    The network is called with a stand-in for its body that returns these states. So the logits
    include every operation of the model's class after the body.

    Returns:
        float32 [n, vocabulary].
    """
    flat = hidden[:, None]
    ids = torch.zeros(flat.shape[:2], dtype=torch.long, device=flat.device)
    with _replace_body_output(base.body, flat) as calls:
        logits: Tensor = base.network(input_ids=ids).logits
    if not calls:
        raise ModelError(
            f"{base.folder}: the head does not call the model's body; choose another model"
        )
    return logits[:, 0].float()


@contextmanager
def _replace_body_output(body: nn.Module, hidden: Tensor) -> Iterator[list[None]]:
    """Make the body return the given hidden states, and yield a list with one entry per call."""
    output = _output_class()(last_hidden_state=hidden)
    calls: list[None] = []

    def give(*_: Any, **__: Any) -> Any:
        calls.append(None)
        return output

    body.forward = give
    try:
        yield calls
    finally:
        del body.forward


@cache
def _output_class() -> Any:
    """Return a class for a body's output in which all fields except the hidden states are None.

    Some heads read further fields, such as a state or the choice of experts.
    """
    from transformers.modeling_outputs import BaseModelOutput

    class BodyOutput(BaseModelOutput):  # type: ignore[misc]
        def __getattr__(self, name: str) -> None:
            if name.startswith("__"):
                raise AttributeError(name)

    return dataclass(BodyOutput)
