"""The measurement of an informed basis, whose vectors are the directions that change answers most.

F = E[∇log p(y|x) ∇log p(y|x)ᵀ] is the Fisher matrix of the adapter's elements at B = 0 under the
model's own predictions y. The texts x are random tokens or lines of a public file, with the task's
prompt around them, so neither data nor labels of a federation are needed.

The basis consists of the eigenvectors with the largest eigenvalues λ, each multiplied by λ^(−1/4).
The factor shortens directions that change answers a lot, because such directions limit the learning
rate. It lengthens the other directions, but not so far that those directions mostly add noise. All
vectors are scaled so that tr(UᵀFU) = tr(F). Projected gradients are then as large as those of
isotropic directions, and the same learning rates are stable.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import softmax

from samara.client.forward.resident import have_equal_row_counts
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.errors import ModelError
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.basis import Basis, BasisOrigin
from samara.shared.protocol.directions import prefix_tokens
from samara.shared.tasks.kinds import ChoiceTask, ClassificationTask
from samara.shared.tasks.rows import read_rows

log = logging.getLogger("samara.client")

TEXTS, PROBE_TEXTS = 2000, 200
BASIS_SIZE = 128
"""Number k of basis vectors."""
LEAST_SHARE = 0.95
"""Minimum share of the probe texts' squared gradients that the span of a basis must contain."""
EXPONENT = -0.25
SHORTEST, LONGEST = 4, 40
"""Minimum and maximum number of random tokens in a text."""
_SEED = 0x5A3A7A
_LENGTHS, _LABELS = 1, 2
_CLIENTS_PER_PASS = 32
_MAX_GRADIENT_BYTES = 2**30
_AT_ONCE = 2**13


@dataclass(frozen=True, eq=False)
class MeasuredBasis:
    """A basis with further results of its measurement.

    Attributes:
        basis: the basis; its `origin` includes the share of the squared gradients of probe texts.
        effective_rank: (Σλ)²/Σλ² of the Fisher matrix.
    """

    basis: Basis
    effective_rank: float


def random_texts(runtime: ModelRuntime, count: int, first: int = 0) -> list[str]:
    """Return texts of random tokens other than the tokenizer's special tokens.

    Args:
        runtime: model runtime.
        count: number of texts.
        first: index of the first text; a text depends on its index alone.
    """
    tokenizer = runtime.base.tokenizer
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in range(len(tokenizer)) if token not in special]
    lengths = prefix_tokens(_SEED + _LENGTHS, first + count, LONGEST - SHORTEST + 1) + SHORTEST
    tokens = prefix_tokens(_SEED, LONGEST * (first + count), len(ordinary)).reshape(-1, LONGEST)
    return [
        tokenizer.decode([ordinary[token] for token in tokens[index, : lengths[index]]])
        for index in range(first, first + count)
    ]


def prompts_around(
    runtime: ModelRuntime, task: ClassificationTask | ChoiceTask, texts: Sequence[str]
) -> list[Prompt]:
    """Return prompts of a task whose fields are filled with texts, one text after the other.

    A field that accepts only given values gets the first of these values.
    """
    fields = [f for f in task.source_fields if f not in task.replace]
    right = {task.label_names[0]: task.labels[0][0]} if task.labels else {}
    fixed = {task.source_fields[f][0]: next(iter(task.replace[f])) for f in task.replace}
    prompts = []
    for start in range(0, len(texts) - len(fields) + 1, len(fields)):
        some = texts[start : start + len(fields)]
        names = [task.source_fields[field][0] for field in fields]
        record = dict(zip(names, some, strict=True)) | fixed | right
        prompts += [runtime.tokenize(row.example) for row in read_rows(record, task)]
    return prompts


def prediction_gradients(runtime: ModelRuntime, prompts: Sequence[Prompt]) -> NDArray[np.float32]:
    """Return the gradients of −log p(y|x) at B = 0, for one predicted answer y per prompt.

    The answers are drawn with the model's probabilities.

    Returns:
        float32 [n, elements], ordered by the lengths of the prompts.
    """
    longest = sorted(prompts, key=lambda prompt: max(map(len, prompt.sequences)))
    probabilities = softmax(runtime.base_scores(longest).astype(np.float64), axis=1)
    uniform = (prefix_tokens(_SEED + _LABELS, len(longest), 2**32) + 0.5) / 2**32
    drawn = (probabilities.cumsum(axis=1) < uniform[:, None]).sum(axis=1)
    labels = np.minimum(drawn, probabilities.shape[1] - 1)
    gradients = np.empty((len(longest), runtime.layout.element_count), np.float32)
    for some in equal_rows(longest):
        center = np.zeros((len(some), runtime.layout.element_count), np.float32)
        texts = Perturbations.from_arrays(runtime.layout, center, device=runtime.torch_device)
        _, gradients[some] = runtime.forward.loss_gradients(
            texts, [longest[index] for index in some.tolist()], labels[some, None]
        )
    return gradients[:, : runtime.layout.adapter_element_count]


def equal_rows(prompts: Sequence[Prompt]) -> Iterator[NDArray[np.int64]]:
    """Yield groups of prompt indices, int64, that can share a pass with one prompt per client."""
    for start in range(0, len(prompts), _CLIENTS_PER_PASS):
        some = np.arange(start, min(start + _CLIENTS_PER_PASS, len(prompts)))
        if have_equal_row_counts([prompts[index] for index in some.tolist()], len(some)):
            yield some
        else:
            yield from some[:, None]


def leading_vectors(
    gradients: NDArray[np.float32], size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the leading eigenvectors of the gradients' second moments.

    Args:
        gradients: float32 [n, d].
        size: number k of vectors.

    Returns:
        All nonzero eigenvalues, descending, float64 [r]; and k orthonormal vectors, float64
        [k, d].

    Raises:
        ModelError: if there are fewer than k nonzero eigenvalues.
    """
    gram = np.zeros((len(gradients), len(gradients)))
    for start in range(0, gradients.shape[1], _AT_ONCE):
        some = gradients[:, start : start + _AT_ONCE].astype(np.float64)
        gram += some @ some.T
    values, vectors = eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    rank = int((values > values[0] * 1e-12).sum()) if values[0] > 0 else 0
    if rank < size:
        raise ModelError(
            f"the answers change in only {rank} directions, but a basis needs {size}; leave "
            "adapter.basis empty, or adapt more elements"
        )
    scaled = vectors[:, :size] / np.sqrt(values[:size])
    return values[:rank] / len(gradients), (scaled.T @ gradients.astype(np.float64))


def share_of_gradients(basis: Basis, gradients: NDArray[np.float32]) -> float:
    """Return the share, 0 to 1, of squared gradients [n, d] that lies in the span of a basis."""
    orthonormal, _ = np.linalg.qr(basis.as_float32().T.astype(np.float64))
    inside = gradients @ orthonormal
    return float(np.square(inside).sum() / np.square(gradients.astype(np.float64)).sum())


def measure_basis(
    runtime: ModelRuntime,
    task: ClassificationTask | ChoiceTask,
    texts: Sequence[str],
    source: str,
) -> MeasuredBasis:
    """Measure the informed basis of a model, an adapter and a task.

    Args:
        runtime: model runtime, whose adapter has no basis.
        task: task whose prompts surround the texts.
        texts: texts for the measurement. The last of them are probe texts, which do not influence
            the basis.
        source: source of the texts, ``random-tokens`` or ``file``.

    Raises:
        ModelError: if the adapter is too large or has too few directions.
    """
    elements = runtime.layout.adapter_element_count
    if 4 * elements * TEXTS > _MAX_GRADIENT_BYTES:
        raise ModelError(
            f"the adapter has {elements:,} elements, but a basis can be measured for at most "
            f"{_MAX_GRADIENT_BYTES // (4 * TEXTS):,}; lower adapter.rank or adapter.layers"
        )
    prompts = prompts_around(runtime, task, texts)
    probes = len(prompts) * PROBE_TEXTS // (TEXTS + PROBE_TEXTS)
    gradients = prediction_gradients(runtime, prompts[:-probes])
    values, vectors = leading_vectors(gradients, BASIS_SIZE)
    leading = values[:BASIS_SIZE]
    factors = leading**EXPONENT
    vectors *= (factors * np.sqrt(values.sum() / (leading * factors**2).sum()))[:, None]
    origin = BasisOrigin(
        runtime.model_id.hex(),
        runtime.layout.adapter_hash.hex(),
        task.name,
        source,
        len(prompts) - probes,
        0.0,
    )
    basis = Basis.quantize(origin, vectors)
    share = share_of_gradients(basis, prediction_gradients(runtime, prompts[-probes:]))
    effective_rank = float(values.sum() ** 2 / np.square(values).sum())
    return MeasuredBasis(basis.with_share(share), effective_rank)
