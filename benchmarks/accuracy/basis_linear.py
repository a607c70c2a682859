"""Federations in informed bases of several sizes and without one, on a linear model, in seconds.

    python -m benchmarks.accuracy.basis_linear --data SST2 --model MINILM --out FOLDER \\
        --condition 128,forward,4,8,16,0.8 --condition 0,central,4,8,8,0.8

A condition is k (0 is isotropic), differences, local steps, queries, examples per step, and η.
`K/R` in place of k is the span of a sparse projector of LSP-Offload: R nonzeros for each element of
the adapter, learned on 500 of the gradients that F is made of. The derivatives of the two labels'
score difference by the adapters of the top two layers (rank 4) are taken once for every sentence
and for 2,000 texts of random tokens, and kept in FOLDER (0.3 GB). Around the base the score is
linear in them, so projected gradients are exact. Eight clients, independent seeds, no clipping; for
tasks of two labels. Printed beside the accuracies: the share of the training sentences' squared
gradients that the basis catches.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.accuracy.basis_runs import Condition, settings_of
from samara.client.offload.projector_learning import learn_projectors
from samara.client.offload.projectors import ProjectorPair, SparseProjector
from samara.client.streaming.loading import load_model
from samara.client.training.informed_basis import (
    EXPONENT,
    TEXTS,
    equal_rows,
    leading_vectors,
    prompts_around,
    random_texts,
)
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.config import RunConfig
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import ClassificationTask

Floats = NDArray[np.float32]
CLIENTS, ALPHA = 8, 5.0
GAMMA, LEARNING_STEPS, LEARNING_TEXTS = 1e-4, 200, 500


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of a split on a model that is linear in the trained numbers.

    Attributes:
        slopes: derivatives of the score difference of the two labels, float32 [n, numbers].
        margins: that difference at the base, float64 [n].
        labels: 0 or 1, int64 [n].
    """

    slopes: Floats
    margins: NDArray[np.float64]
    labels: NDArray[np.int64]

    def correct(self, theta: Floats) -> int:
        """Return how many sentences are classified correctly."""
        return int(((self.margins + self.slopes @ theta > 0) == (self.labels == 1)).sum())


def prediction_gradients(slopes: Floats, margins: NDArray[np.floating[Any]]) -> Floats:
    """Return a gradient for each text whose outer product is the mean over both answers, [n, d].

    Args:
        slopes: derivatives of the score difference of the two labels, float32 [n, d].
        margins: that difference, [n].
    """
    gradients: Floats = slopes * np.sqrt(expit(margins) * expit(-margins))[:, None]
    return gradients.astype(np.float32)


def slopes_of(runtime: ModelRuntime, prompts: Sequence[Prompt]) -> tuple[Floats, Floats]:
    """Return derivatives [n, d] and values [n] of the score difference at the base."""
    order = np.argsort([max(map(len, prompt.sequences)) for prompt in prompts], kind="stable")
    ordered = [prompts[index] for index in order.tolist()]
    scores = runtime.base_scores(ordered)
    margins = scores[:, 1] - scores[:, 0]
    found = np.empty((len(ordered), runtime.layout.element_count), np.float32)
    for some in equal_rows(ordered):
        center = np.zeros((len(some), runtime.layout.element_count), np.float32)
        texts = Perturbations.from_arrays(runtime.layout, center, device=runtime.torch_device)
        batch = [ordered[index] for index in some.tolist()]
        _, gradients = runtime.forward.loss_gradients(
            texts, batch, np.zeros((len(some), 1), np.int64)
        )
        found[some] = gradients / expit(margins[some])[:, None]
    back = np.argsort(order)
    return found[back], margins[back]


def read_sentences(arguments: argparse.Namespace) -> tuple[dict[str, Sentences], Floats]:
    """Return the splits, and the gradients that the Fisher matrix is made of, float32 [n, d]."""
    file = arguments.out / "slopes.npz"
    if not file.exists():
        config = RunConfig.of(settings_of(arguments) | {"gradients": "exact"}, "benchmark")
        task = load_task(config.task)
        assert isinstance(task, ClassificationTask)
        runtime = ModelRuntime(config, load_model(config.model), task, lambda clients: [])
        arrays = {}
        for split in ("train", "validation", "test"):
            examples = [e for e in load_examples(arguments.data, task, 0, 0) if e.split == split]
            prompts = [runtime.tokenize(example) for example in examples]
            arrays[f"{split}_slopes"], arrays[f"{split}_margins"] = slopes_of(runtime, prompts)
            arrays[f"{split}_labels"] = np.array([example.label for example in examples])
        texts = random_texts(runtime, TEXTS * len(task.source_fields))
        slopes, margins = slopes_of(runtime, prompts_around(runtime, task, texts))
        arrays["fisher"] = prediction_gradients(slopes, margins)
        arguments.out.mkdir(parents=True, exist_ok=True)
        np.savez(file, allow_pickle=False, **arrays)
    kept = np.load(file)
    splits = {
        split: Sentences(*(kept[f"{split}_{name}"] for name in ("slopes", "margins", "labels")))
        for split in ("train", "validation", "test")
    }
    return splits, kept["fisher"]


def basis_vectors(fisher: Floats, size: int, nonzeros: int) -> Floats:
    """Return k orthonormal eigenvectors of the Fisher matrix, or of it within a span.

    Args:
        fisher: gradients that the Fisher matrix is made of, float32 [n, d].
        size: number of vectors, k.
        nonzeros: nonzeros of an element's row in the projector that spans them; 0 for no projector.

    Returns:
        float32 [k, d].
    """
    if not nonzeros:
        return leading_vectors(fisher, size)[1].astype(np.float32)
    drawn = SparseProjector.random(fisher.shape[1], size, nonzeros, (0,), torch.device("cpu"))
    gradient = torch.from_numpy(np.ascontiguousarray(fisher[:LEARNING_TEXTS].T))
    learned = learn_projectors(ProjectorPair(left=drawn), gradient, 0.0, GAMMA, LEARNING_STEPS)
    assert learned.projectors.left is not None
    span, _ = np.linalg.qr(learned.projectors.left.dense().numpy())
    _, vectors = leading_vectors(fisher @ span, size)
    lifted: Floats = (vectors @ span.T).astype(np.float32)
    return lifted


def scaled(vectors: Floats, fisher: Floats) -> Floats:
    """Return basis vectors [k, d], each times λ^EXPONENT of its λ = uᵀFu, all with the trace of F.

    Args:
        vectors: orthonormal vectors, float32 [k, d].
        fisher: gradients that the Fisher matrix is made of, float32 [n, d].
    """
    values = np.square(fisher @ vectors.T, dtype=np.float64).mean(axis=0)
    factors = values**EXPONENT
    factors *= np.sqrt(np.square(fisher).sum() / len(fisher) / (values * factors**2).sum())
    whole: Floats = (vectors * factors[:, None]).astype(np.float32)
    return whole


def share_of(vectors: Floats, gradients: Floats) -> float:
    """Return the share of squared gradients [n, d] in the span of orthonormal vectors [k, d]."""
    return float(np.square(gradients @ vectors.T).sum() / np.square(gradients).sum())


def divide(labels: NDArray[np.int64], seed: int) -> list[NDArray[np.int64]]:
    """Return the indices of every client's sentences; shares of labels are Dirichlet."""
    generator = np.random.default_rng(seed + 1000)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(CLIENTS)]
    for label in (0, 1):
        indices = generator.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(generator.dirichlet([ALPHA] * CLIENTS))[:-1] * len(indices)
        for part, some in zip(parts, np.split(indices, ends.astype(int)), strict=True):
            part.append(some)
    return [np.concatenate(part) for part in parts]


def train(
    splits: dict[str, Sentences], condition: Condition, seed: int, rounds: int
) -> NDArray[np.float64]:
    """Return the accuracy on validation and test together, before and after every round."""
    data, parts = splits["train"], divide(splits["train"].labels, seed)
    generator, eta = np.random.default_rng(seed), float(condition.learning_rate)
    theta = np.zeros(data.slopes.shape[1], np.float32)
    held_out = [splits["validation"], splits["test"]]
    correct = [sum(split.correct(theta) for split in held_out)]
    for _ in range(rounds):
        update = np.zeros_like(theta)
        for part in parts:
            moved = np.zeros_like(theta)
            for _ in range(condition.steps):
                batch = generator.choice(part, condition.batch, replace=False)
                slopes = data.slopes[batch]
                margins = data.margins[batch] + slopes @ (theta + moved)
                errors = (expit(margins) - data.labels[batch]) / len(batch)
                z = generator.standard_normal((condition.queries, len(theta)), dtype=np.float32)
                projected = z @ (errors.astype(np.float32) @ slopes)
                moved -= eta / condition.queries * (projected @ z)
            update += len(part) / len(data.labels) * moved
        theta = theta + update
        correct.append(sum(split.correct(theta) for split in held_out))
    return np.array(correct) / sum(len(split.labels) for split in held_out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("--data", "--model"):
        parser.add_argument(name, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--budgets", type=int, nargs="*", default=[2560, 5120, 10240, 16384])
    parser.add_argument("--condition", action="append", required=True)
    arguments = parser.parse_args()
    splits, fisher = read_sentences(arguments)
    gradients = prediction_gradients(splits["train"].slopes, splits["train"].margins)
    for text in arguments.condition:
        form, _, rest = text.partition(",")
        size, _, nonzeros = form.partition("/")
        condition = Condition.parse(f"{'basis' if int(size) else 'isotropic'},{rest}")
        data, share = splits, 1.0
        if int(size):
            vectors = basis_vectors(fisher, int(size), int(nonzeros or 0))
            share = share_of(vectors, gradients)
            basis = scaled(vectors, fisher).T
            data = {
                name: Sentences(split.slopes @ basis, split.margins, split.labels)
                for name, split in splits.items()
            }
        rounds = [budget // condition.passes for budget in arguments.budgets]
        curves = [train(data, condition, seed, max(rounds)) for seed in range(arguments.seeds)]
        curve = np.mean(curves, axis=0)
        # the last two rounds within a budget
        cells = [f"{curve[max(1, end) - 1 : end + 1].mean():.2%}" for end in rounds]
        head = f"k {form}, {rest}: share {share:.1%}, {curve[0]:.2%} at the start,"
        print(head, *cells, flush=True)


if __name__ == "__main__":
    main()
