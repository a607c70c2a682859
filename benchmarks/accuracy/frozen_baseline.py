"""A baseline on frozen embeddings of all users' texts in one place, with true gradients.

    python -m benchmarks.accuracy.frozen_baseline --task popquorn --data FILE \\
        --model MODEL --clients 120

Logistic regressions with an intercept of each client's own, as in `words_baseline`:

- embeddings: on the mean of the last layer's output;
- adapters: on the gradient of a text's scores by the adapter's numbers at the base. To first order
  that is all that training these adapters can do, by whatever steps;
- embeddings and words: on both.

Upper bounds for a federation of such adapters, which sees no text and no true gradient.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack

from benchmarks.accuracy.words_baseline import (
    PENALTIES,
    Rows,
    by_client,
    divided,
    fitted,
    print_baselines,
    words_of,
)
from samara.client.forward.body import PerturbedBody
from samara.client.forward.resident import ResidentForward
from samara.client.streaming.loading import load_model
from samara.shared.data_settings import DataSettings
from samara.shared.model.lora_fa import inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import scorer_for
from samara.shared.sections import AdapterSettings, ModelSettings
from samara.shared.tasks.catalog import load_task

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""C of dense features, from strong regularisation to weak."""


class Frozen:
    """A base model that is looked at and not trained.

    Args:
        task: of the texts, with two labels.
        model: whose encoder it is.
        adapter: whose numbers' gradients are wanted.
    """

    def __init__(self, task: str, model: ModelSettings, adapter: AdapterSettings) -> None:
        self._base = load_model(model).base
        self._body = PerturbedBody(self._base, 0)
        with torch.no_grad():
            self._scorer = scorer_for(self._base, load_task(task), model.max_length, self._body)
        inside = inject(self._base, adapter, self._scorer.labels)
        self.layout = inside.layout
        top = PerturbedBody(self._base, inside.first_block)
        self._forward = ResidentForward(inside, self._scorer, top)

    def embedding(self, text: str) -> NDArray[np.float64]:
        """Mean of the last layer's output, [hidden]."""
        (sequence,) = self._scorer.prompt(text).sequences
        with torch.no_grad():
            states = self._body([sequence])[0, : len(sequence)]
        return states.double().mean(0).numpy()

    def gradient(self, text: str) -> NDArray[np.float64]:
        """Return the gradient of the labels' score difference, and the difference, [d + 1]."""
        numbers = torch.zeros(self.layout.size, requires_grad=True)
        prompt = self._scorer.prompt(text)
        one, other = self._forward.score_pass(Perturbations(self.layout, numbers), [prompt])[0, 0]
        (other - one).backward()
        assert numbers.grad is not None
        return np.append(numbers.grad.numpy(), float(other.detach() - one.detach()))


def told_by(
    of_text: Callable[[str], NDArray[np.float64]], rows: dict[str, Rows]
) -> Callable[[Rows], NDArray[np.float64]]:
    """Features by text, each looked up once, of mean 0 and variance 1 over the training rows."""
    texts = {example.text for some in rows.values() for _, example in some}
    known = {text: of_text(text) for text in sorted(texts)}
    train = np.stack([known[example.text] for _, example in rows["train"]])
    mean, spread = train.mean(axis=0), train.std(axis=0)
    spread[spread == 0] = 1.0
    return lambda some: (np.stack([known[e.text] for _, e in some]) - mean) / spread


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=128)
    given = parser.parse_args(arguments)
    data = DataSettings(path=given.data, clients=given.clients)
    rows, classes = divided(given.task, data)
    model = ModelSettings.model_validate({"path": given.model, "max-length": given.max_length})
    frozen = Frozen(given.task, model, AdapterSettings(layers="top:1", rank=given.rank, alpha=4.0))
    embedded, words = told_by(frozen.embedding, rows), words_of(rows["train"])

    def both(some: Rows) -> Any:
        return hstack([words(some), csr_matrix(0.1 * embedded(some))])

    test = rows["test"]
    answers = {
        "embeddings": fitted(embedded, rows, given.clients, STRENGTHS),
        "adapters": fitted(told_by(frozen.gradient, rows), rows, given.clients, STRENGTHS),
        "embeddings and words": fitted(both, rows, given.clients, PENALTIES),
    }
    found = {name: by_client(test, told, classes) for name, told in answers.items()}
    print_baselines(found, given.clients)


if __name__ == "__main__":
    main()
