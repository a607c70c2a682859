"""A check before training that a `PerturbedBody` computes the same outputs as transformers.

A few short sequences go through the unmodified network, one at a time. The same sequences go
together through a `PerturbedBody`: padded, with repeated rows, and with perturbed adapters if there
are any. If the results differ, the next way to compute the body is tried
(`samara.client.forward.proven_body`). The check also finds models that do not match their family,
and heads that cannot be applied separately.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from samara.client.forward.trunk_cache import Ids
from samara.shared.errors import ModelError, SamaraError
from samara.shared.model.head import tiled_logits
from samara.shared.model.loading import BaseModel
from samara.shared.model.lora_fa import Adapter
from samara.shared.model.perturbations import Perturbations
from samara.shared.protocol.directions import DIRECTION_BITS

TOKENS = 7
"""Maximum number of tokens in a sequence of the check."""
_TOLERANCE, _HALF_PRECISION_TOLERANCE = 1e-4, 0.1
"""Largest accepted norm of a difference, relative to the norm of the expected tensor; for float32
and for half precision."""
_VISIBLE = 0.02
"""Smallest relative norm of an adapter's effect that is clearly larger than rounding errors."""
_MAGNITUDES = 0.1, 1.0, 10.0
"""Magnitudes of the adapters' values, tried until their effect is visible."""
_HEAD = "head"
"""Key under which the result of the check of a model's head is stored."""


class _BodyDoneError(Exception):
    """Exception that ends a forward pass before the model's head."""


class PerturbedPair(NamedTuple):
    """Two perturbations of a model's adapters, and the resulting hidden states.

    Attributes:
        adapter: the adapters.
        both: the two perturbations.
        hidden: hidden states of each sequence under each perturbation, [S, hidden].
    """

    adapter: Adapter
    both: Perturbations
    hidden: Sequence[Sequence[Tensor]]


def reason_from(function: Callable[[], str]) -> str:
    """Return the reason that a function returns, or the text of an error that it raises.

    Models of transformers may raise any error for inputs in an unexpected form. Samara's errors and
    out-of-memory errors are raised again.
    """
    try:
        return function()
    except (SamaraError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if str(error).endswith("has no attribute 'weight'"):
            return (
                "it reads the weight of a layer without calling the layer, so the layer can be "
                "neither adapted nor quantized; set adapter.projections to other layers, and "
                "model.quantization = none"
            )
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"


def probe_sequences(base: BaseModel) -> tuple[Ids, Ids, Ids]:
    """Return three sequences of ordinary tokens; the second is a prefix of the first."""
    config = base.network.config
    taken = {
        value
        for part in (config, config.get_text_config())
        for name, value in part.to_dict().items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    }
    taken.update(base.tokenizer.all_special_ids)
    length = min(TOKENS, base.context)
    ordinary = [token for token in range(base.vocabulary) if token not in taken][: 2 * length]
    ordinary = ordinary or [0]
    tokens = [ordinary[index % len(ordinary)] for index in range(2 * length)]
    first, second = tuple(tokens[:length]), tuple(tokens[length:])
    return first, first[: length // 2 + 1], second


def plain_hidden(base: BaseModel, sequence: Ids) -> Tensor:
    """Return the hidden states of one sequence in the unmodified network, [S, hidden]."""
    with _recording(base.body) as recorded, suppress(_BodyDoneError):
        _run_network(base, sequence)
    return _hidden(base, recorded)


def difference_of_head(base: BaseModel, expected: Sequence[Tensor]) -> str:
    """Return the difference of a network's head from its family, or an empty text if it matches.

    A match is stored, so a model is checked once.

    Args:
        base: the model.
        expected: hidden states of the probe sequences.
    """
    if _HEAD in base.verdicts:
        return ""
    if not all(states.isfinite().all() for states in expected):
        return (
            "it computes numbers that are not finite, because its weights are damaged or too large "
            "for model.dtype; download the weights again, or set model.dtype = float32"
        )
    hidden, of_beginning, _ = expected
    output = _run_network(base, probe_sequences(base)[0])
    if base.family == "encoder":
        if not are_equal(base, output.last_hidden_state[0], hidden):
            return "its output differs from the output of its text model; choose another model"
    elif not are_equal(base, torch.cat(list(tiled_logits(base, hidden))), output.logits[0]):
        return (
            "its head uses more than the last hidden states of its text model; choose "
            "another model, or set architectures in config.json to the class of its body"
        )
    if base.family == "causal" and not are_equal(base, of_beginning, hidden[: len(of_beginning)]):
        return (
            "it reads a text in both directions, unlike a causal LM; set architectures in "
            "config.json to the class of its masked LM or of its body"
        )
    base.verdicts[_HEAD] = True
    return ""


def refusal(base: BaseModel, reason: str) -> ModelError:
    """Return the error for a model that cannot be computed."""
    kind = {"causal": "causal LM", "masked": "masked LM", "encoder": "sentence encoder"}[
        base.family
    ]
    name = type(base.network).__name__
    return ModelError(f"{base.folder}: {name} cannot be used as a {kind}: {reason}")


def _run_network(base: BaseModel, sequence: Ids) -> Any:
    ids = torch.tensor([sequence], device=base.network.device)
    return base.network(input_ids=ids, attention_mask=torch.ones_like(ids))


@contextmanager
def _recording(body: nn.Module) -> Iterator[list[Tensor]]:
    """Record the hidden states of a body inside the context, and end the pass after the body."""
    recorded: list[Tensor] = []

    def record(_: nn.Module, __: Any, output: Any) -> None:
        recorded.append(output.last_hidden_state)
        raise _BodyDoneError

    handle = body.register_forward_hook(record)
    try:
        yield recorded
    finally:
        handle.remove()


def _hidden(base: BaseModel, recorded: Sequence[Tensor]) -> Tensor:
    if not recorded:
        raise ValueError("its head does not call its text model")
    (hidden,) = recorded
    if hidden.ndim != 3 or hidden.shape[2] != base.hidden_size:
        raise ValueError(
            f"its output has shape {list(hidden.shape)}, not {base.hidden_size} per token"
        )
    return hidden[0]


def perturbed_pair(
    base: BaseModel, sequences: Sequence[Ids], unchanged: Sequence[Tensor]
) -> PerturbedPair | None:
    """Return two perturbations of a model's adapters, with the network's output under each.

    Args:
        base: the model.
        sequences: token sequences.
        unchanged: hidden states of each sequence without adapters.

    Returns:
        The perturbations and the hidden states; None if the model has no adapters.

    Raises:
        ModelError: if the output does not depend on the adapters.
    """
    found = (getattr(part, "adapter", None) for part in base.body.modules())
    adapter = next((one for one in found if isinstance(one, Adapter)), None)
    if adapter is None:
        return None
    layout, device = adapter.layout, base.network.device
    random = np.random.default_rng(0)
    center = random.standard_normal(layout.element_count).astype(np.float32)
    z = (random.standard_normal((1, layout.element_count)) * 2**DIRECTION_BITS).astype(np.int16)
    for magnitude in _MAGNITUDES:
        both = Perturbations.from_arrays(layout, center * magnitude, z, magnitude, device)
        step = both.epsilon * 2.0**-DIRECTION_BITS * z[0].astype(np.float32)
        hidden = []
        for sign in both.signs:
            one = center * magnitude + np.float32(sign) * step
            with adapter.using(Perturbations.from_arrays(layout, one, device=device)):
                hidden.append([plain_hidden(base, sequence) for sequence in sequences])
        pairs = zip(hidden[0] + hidden[1], hidden[1] + list(unchanged), strict=True)
        effects = [relative_length(one, other) for one, other in pairs]
        if min(effects) >= _VISIBLE:
            break
    if not max(effects):
        raise refusal(base, "its output does not depend on the adapted layers; adapt other layers")
    return PerturbedPair(adapter, both, hidden)


def are_equal(base: BaseModel, one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs of a model differ only by rounding."""
    exact = base.network.dtype == torch.float32
    tolerance = _TOLERANCE if exact else _HALF_PRECISION_TOLERANCE
    return one.shape == other.shape and relative_length(one, other) <= tolerance


def relative_length(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference of two tensors, divided by the second tensor's norm.

    After rounding, a mixture of experts may route a single token differently. Such a token changes
    the norm only a little.
    """
    difference, whole = float((one.float() - other.float()).norm()), float(other.float().norm())
    return difference / whole if whole else difference
