"""Baselines without a language model: majority, base rate, and a bag of words.

    python -m benchmarks.accuracy.words_baseline --task popquorn --data FILE --clients 120

Base rate + words is a logistic regression on all clients' training texts together, with an
intercept of each client's own; its penalty is chosen on validation. It is no federation: all texts
are in one place, and where clients read the same texts it has others' answers to them.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from samara.shared.data_settings import DataSettings
from samara.shared.label_scores import Confusion
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.kinds import ClassificationTask
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example

PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)
INTERCEPT = 3.0
"""The value of a client's own feature: the penalty should weigh more on words."""

SPLITS = ("train", "validation", "test")
Rows = Sequence[tuple[int, Example]]
"""Examples, each with the client that holds it."""
Labels = NDArray[np.int64]


def baselines(task_name: str, data: DataSettings) -> dict[str, dict[int, Confusion]]:
    """Confusion of every client's test examples, by baseline."""
    rows, classes = divided(task_name, data)
    train, test = rows["train"], rows["test"]
    commonest = np.bincount(labels_of(train)).argmax()
    own = [np.bincount([e.label for c, e in train if c == k]).argmax() for k in range(data.clients)]
    answers = {
        "majority": np.full(len(test), commonest),
        "base rate": np.array([own[client] for client, _ in test]),
        "base rate + words": fitted(words_of(train), rows, data.clients, PENALTIES),
    }
    return {name: by_client(test, told, classes) for name, told in answers.items()}


def divided(task_name: str, data: DataSettings) -> tuple[dict[str, Rows], int]:
    """The clients' examples by split, and how many labels the task has."""
    task = load_task(task_name)
    assert isinstance(task, ClassificationTask)
    examples = load_examples(data.path, task, data.seed, data.limit)
    shares = partition(examples, data.partition, data.clients, data.alpha, data.seed)
    rows = [(client, example) for client, own in enumerate(shares) for example in own]
    splits: dict[str, Rows] = {s: [row for row in rows if row[1].split == s] for s in SPLITS}
    return splits, len(task.words)


def by_client(rows: Rows, told: Labels, classes: int) -> dict[int, Confusion]:
    """Answers against the labels of rows, client by client."""
    truth, clients = labels_of(rows), np.array([client for client, _ in rows])
    return {
        int(client): Confusion.from_predictions(
            truth[clients == client], told[clients == client], classes
        )
        for client in np.unique(clients)
    }


def words_of(train: Rows) -> Callable[[Rows], Any]:
    """Return a function from texts to TF-IDF features, sparse [n, words]."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    words.fit([example.text for _, example in train])
    return lambda rows: words.transform([example.text for _, example in rows])


def fitted(
    features: Callable[[Rows], Any],
    rows: dict[str, Rows],
    clients: int,
    penalties: Sequence[float],
) -> Labels:
    """Return the predictions of a logistic regression for the test rows, int64 [n].

    Args:
        features: of rows, [n, m]; each client's own intercept is added.
        rows: by split; the training rows are learned from.
        clients: how many.
        penalties: inverse strengths, of which that with the best accuracy on validation counts.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.linear_model import LogisticRegression

    def all_features(some: Rows) -> csr_matrix:
        places = np.arange(len(some)), np.array([client for client, _ in some])
        own = csr_matrix((np.full(len(some), INTERCEPT), places), (len(some), clients))
        return csr_matrix(hstack([own, csr_matrix(features(some))]))

    train, held, test = (all_features(rows[split]) for split in SPLITS)
    learned, judged = labels_of(rows["train"]), labels_of(rows["validation"])
    models = [LogisticRegression(C=c, max_iter=2000).fit(train, learned) for c in penalties]
    best = max(models, key=lambda model: model.score(held, judged))
    return np.asarray(best.predict(test), np.int64)


def print_baselines(found: dict[str, dict[int, Confusion]], clients: int) -> None:
    """Means over clients."""
    table = Table("", "accuracy, %", "macro-F1, %", title=f"mean over {clients} clients")
    for name, figures in found.items():
        accuracy = np.mean([own.accuracy for own in figures.values()])
        macro_f1 = np.mean([own.macro_f1 for own in figures.values()])
        table.add_row(name, f"{accuracy:.1%}", f"{macro_f1:.1%}")
    Console().print(table)


def labels_of(rows: Rows) -> Labels:
    return np.array([example.label for _, example in rows], np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--clients", type=int, required=True)
    given = parser.parse_args()
    data = DataSettings(path=given.data, clients=given.clients)
    print_baselines(baselines(given.task, data), given.clients)


if __name__ == "__main__":
    main()
