"""The damping of a readout: φ(h) = C^(−1/4)·(h − μ), scaled so that the mean of |φ|² is 1.

h is a representation. μ and C are the mean and the covariance of the representations of unrelated
texts. A few directions hold most of this variance, and along them the loss changes much faster than
along the others. So they limit the step size for all directions. Dividing by the fourth root of C
halves this difference on a logarithmic scale. C is shrunk towards a multiple of the identity
(Ledoit and Wolf, 2004), because there may be fewer texts than features. The root is symmetric,
because only the symmetric root is unique.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from samara.shared.errors import ConfigError, ModelError
from samara.shared.model.cache_key import cache_key, model_inputs
from samara.shared.model.loading import BaseModel
from samara.shared.model.scorers import Prompt
from samara.shared.protocol.directions import text_tokens
from samara.shared.protocol.layout import RANDOM_TOKENS, DampingRecipe
from samara.shared.storage.blob_store import BlobStore, blob_hash, resolve_blob
from samara.shared.storage.files import cache_folder, make_folder, write_once
from samara.shared.tasks.kinds import ChoiceTask, Task
from samara.shared.tasks.rows import Example

RANDOM_TEXTS = 256
"""Number of random-token texts on which a damping is measured."""
RANDOM_SEED = 0
VERSION = 1
"""Version of the measurement of a damping on random tokens."""
SHORTEST, LONGEST = 8, 32
"""Least and largest number of tokens in a random text."""
DAMPING_FORMAT = "samara damping 1"


@dataclass(frozen=True, eq=False)
class Damping:
    """A damping: the affine map from representations to features.

    Attributes:
        mean: μ, float32 [features].
        root: C^(−1/4) times the factor that makes the mean of |φ|² equal to 1, float32 [features,
            features], symmetric.
    """

    mean: Tensor
    root: Tensor

    def apply(self, representations: Tensor) -> Tensor:
        """Return the features of representations, float32 [..., features]."""
        return (representations - self.mean) @ self.root

    def to(self, device: torch.device) -> "Damping":
        """Return the same map on a torch device."""
        return Damping(self.mean.to(device), self.root.to(device))


def identity_damping(features: int) -> Damping:
    """Return the damping `none`, which leaves representations unchanged."""
    return Damping(torch.zeros(features), torch.eye(features))


def measure_damping(representations: NDArray[np.float32]) -> tuple[Damping, float]:
    """Compute a damping from the representations of texts; return it and their effective rank.

    Args:
        representations: one row per text, float32 [n, features].

    Raises:
        ModelError: if the representations are not finite, or are all equal.
    """
    numbers = representations.astype(np.float64)
    centered = numbers - numbers.mean(axis=0)
    if not (np.all(np.isfinite(numbers)) and np.any(centered)):
        raise ModelError(
            f"damping: the representations of {len(numbers)} texts are all equal or not finite; "
            "check the model's weights, or set adapter.damping to none"
        )
    variances = np.linalg.svd(centered, compute_uv=False) ** 2
    rank = float(variances.sum() ** 2 / np.square(variances).sum())
    values, vectors = np.linalg.eigh(shrunk_covariance(centered))
    root = (vectors * np.maximum(values, 1e-12 * values[-1]) ** -0.25) @ vectors.T
    scale = np.mean(np.square(centered @ root).sum(axis=1)) ** -0.5
    return Damping(
        torch.from_numpy(numbers.mean(axis=0).astype(np.float32)),
        torch.from_numpy((scale * root).astype(np.float32)),
    ), rank


def shrunk_covariance(centered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a covariance shrunk towards a multiple of the identity, float64 [p, p].

    The weight of the identity is min(b², d²) / d² of Ledoit and Wolf (2004), an estimate of the
    weight with the least expected squared error. scikit-learn has the same estimator, but its
    import takes more than 100 MiB of memory.

    Args:
        centered: n observations of p numbers with means of zero, float64 [n, p].
    """
    count, size = centered.shape
    covariance = centered.T @ centered / count
    variance = np.trace(covariance) / size
    squares = np.sum(covariance**2)
    distance = squares - size * variance**2
    error = (np.mean(np.sum(centered**2, axis=1) ** 2) - squares) / count
    share = min(error, distance) / distance if distance > 0 else 0.0
    shrunk: NDArray[np.float64] = (1 - share) * covariance + share * variance * np.eye(size)
    return shrunk


def damping_recipe(damping: str) -> DampingRecipe:
    """Return the part of the layout that describes a value of ``adapter.damping``.

    Raises:
        ConfigError: if the value names a missing file.
        MissingBlobError: if the value names a blob that is not in this machine's store.
    """
    if damping == "none":
        return DampingRecipe()
    if damping == RANDOM_TOKENS:
        return DampingRecipe("random-tokens", RANDOM_TEXTS, RANDOM_SEED, VERSION)
    return DampingRecipe("file", sha256=blob_hash(_file_of(damping)).hex())


def _file_of(damping: str) -> Path:
    """Return the file that a value of ``adapter.damping`` names by its path or its hash."""
    return resolve_blob(damping, BlobStore(), "adapter.damping")


def load_damping(
    damping: str, base: BaseModel, prompts: Callable[[], list[Prompt]], represent: "Represent"
) -> Damping:
    """Load or measure the damping that a value of ``adapter.damping`` describes for a model.

    A damping from random tokens is measured once on a machine, and then read from a cache file.

    Args:
        damping: value of ``adapter.damping``.
        base: model.
        prompts: function that returns the prompts of random tokens.
        represent: function that returns the representations of prompts, float32 [n, features].

    Raises:
        ConfigError: if the damping's file cannot be read or written, or belongs to another model.
        ModelError: if the representations are not finite.
    """
    if damping == "none":
        return identity_damping(base.features)
    if damping != RANDOM_TOKENS:
        return read_damping(_file_of(damping), base)
    texts = prompts()
    file = _measured_file(base, texts)
    if not file.exists():
        measured, rank = measure_damping(represent(texts))
        try:
            make_folder(file.parent)
            write_once(file, encode_damping(measured, base, len(texts), rank))
        except OSError as error:
            raise ConfigError(
                f"{file}: cannot be written: {error.strerror}; free disk space, or set "
                "adapter.damping to none"
            ) from error
    return read_damping(file, base)


def texts_to_measure(
    damping: str, base: BaseModel, prompts: Callable[[], list[Prompt]]
) -> list[Prompt]:
    """Return the random texts that `load_damping` would measure, or none if it would read a file.

    Args:
        damping, base, prompts: as for `load_damping`.
    """
    if damping != RANDOM_TOKENS:
        return []
    texts = prompts()
    return [] if _measured_file(base, texts).exists() else texts


def _measured_file(base: BaseModel, texts: Sequence[Prompt]) -> Path:
    return cache_folder("damping") / f"{_cache_key(base, texts).hex()}.safetensors"


Represent = Callable[[Sequence[Prompt]], NDArray[np.float32]]


def encode_damping(damping: Damping, base: BaseModel, texts: int, rank: float) -> bytes:
    """Encode a damping as a safetensors file.

    Args:
        damping: damping of the model.
        base: model.
        texts: number of measured texts.
        rank: effective rank of the texts' representations.
    """
    metadata = {
        "format": DAMPING_FORMAT,
        "model_id": base.model_id.hex(),
        "texts": str(texts),
        "effective_rank": f"{rank:.2f}",
    }
    return bytes(save({"mean": damping.mean, "root": damping.root}, metadata))


def read_damping(file: Path, base: BaseModel) -> Damping:
    """Read a damping of a model.

    Raises:
        ConfigError: if the file is damaged or missing, or belongs to another model.
    """
    remedy = "write it again with samara adapter damping"
    try:
        with safe_open(file, "pt") as opened:
            metadata: dict[str, str] = opened.metadata() or {}
            mean, root = opened.get_tensor("mean"), opened.get_tensor("root")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: cannot be read as a damping: {error}; {remedy}") from error
    if metadata.get("format") != DAMPING_FORMAT:
        raise ConfigError(f"{file}: this is not a damping of this version of Samara; {remedy}")
    size = base.features
    if metadata.get("model_id") != base.model_id.hex() or mean.shape != (size,):
        raise ConfigError(
            f"{file}: this damping belongs to another model, not to the one in {base.folder}; "
            f"{remedy}"
        )
    numbers = [mean, root]
    if root.shape != (size, size) or any(
        t.dtype != torch.float32 or not bool(torch.isfinite(t).all()) for t in numbers
    ):
        raise ConfigError(f"{file}: this damping is damaged; {remedy}")
    return Damping(mean, root)


def random_examples(base: BaseModel, task: Task, count: int, seed: int) -> list[Example]:
    """Return examples of a task whose fields are random tokens. Their labels have no meaning."""
    special = set(base.tokenizer.all_special_ids)
    vocabulary = sorted(set(base.tokenizer.get_vocab().values()) - special)
    fields = len(task.fields)
    drawn = text_tokens(seed, count * fields, LONGEST + 1, len(vocabulary))

    def texts() -> Iterator[str]:
        for row in drawn:
            length = SHORTEST + int(row[0]) % (LONGEST + 1 - SHORTEST)
            text = base.tokenizer.decode([vocabulary[token] for token in row[1 : 1 + length]])
            yield " ".join(text.split()) or "."

    written = texts()
    return [_example(task, index, [next(written) for _ in task.fields]) for index in range(count)]


def _example(task: Task, index: int, texts: Sequence[str]) -> Example:
    fields = dict(zip(task.fields, texts, strict=True))
    for name, replacements in task.replace.items():
        values = sorted(replacements.values())
        fields[name] = values[index % len(values)]
    answers: tuple[str, ...] = ()
    text = ""
    if isinstance(task, ChoiceTask):
        if task.gap:
            first = task.fields[0]
            fields = {name: value.replace(task.gap, " ") for name, value in fields.items()}
            half = len(fields[first]) // 2
            fields[first] = f"{fields[first][:half]} {task.gap} {fields[first][half:]}"
        text, after = task.split_at_candidate(fields)
        answers = tuple(candidate + after for candidate in task.candidate_texts(fields))
    else:
        text = task.render(fields)
    span = task.cut_span(fields)
    cut = span and (min(span[0], len(text)), min(span[1], len(text)))
    return Example(text, 0, "", "", answers, cut)


def _cache_key(base: BaseModel, prompts: Sequence[Prompt]) -> bytes:
    return cache_key(
        f"{DAMPING_FORMAT}, version {VERSION}, passes 2",
        model=model_inputs(base),
        threads=torch.get_num_threads(),
        prompts=[list(vars(prompt).values()) for prompt in prompts],
    )
