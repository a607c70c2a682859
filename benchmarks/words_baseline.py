"""What needs no language model: the commonest answer, each client's own, and a bag of words.

    python -m benchmarks.words_baseline --task popquorn --data FILE --clients 120

Base rate + words is a logistic regression on all clients' training texts together, with an
intercept of each client's own; its penalty is chosen on validation. It is no federation: all texts
are in one place, and where clients read the same texts it has others' answers to them.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from shared.config import DataSettings
from shared.tasks.catalog import load_task
from shared.tasks.data import load_examples
from shared.tasks.kinds import ClassificationTask
from shared.tasks.metrics import Confusion
from shared.tasks.partition import partition
from shared.tasks.rows import Example

PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)
INTERCEPT = 3.0
"""How large a client's own feature is: the penalty is to weigh on words more than on base rates."""

Rows = Sequence[tuple[int, Example]]
"""Examples, each with the client that holds it."""
Labels = NDArray[np.int64]


def baselines(task_name: str, data: DataSettings) -> dict[str, dict[int, Confusion]]:
    """Confusion of every client's test examples, by baseline."""
    task = load_task(task_name)
    assert isinstance(task, ClassificationTask)
    examples = load_examples(data.path, task, data.seed, data.limit)
    shares = partition(examples, data.partition, data.clients, data.alpha, data.seed)
    rows = [(client, example) for client, own in enumerate(shares) for example in own]
    train, held, test = (
        [row for row in rows if row[1].split == split] for split in ("train", "validation", "test")
    )
    commonest = np.bincount(_labels(train)).argmax()
    own = [np.bincount([e.label for c, e in train if c == k]).argmax() for k in range(len(shares))]
    answers = {
        "majority": np.full(len(test), commonest),
        "base rate": np.array([own[client] for client, _ in test]),
        "base rate + words": _with_words(train, held, data.clients)(test),
    }
    truth, clients = _labels(test), np.array([client for client, _ in test])
    return {
        name: {
            int(client): Confusion.of(
                truth[clients == client], told[clients == client], len(task.words)
            )
            for client in np.unique(clients)
        }
        for name, told in answers.items()
    }


def _with_words(train: Rows, held: Rows, clients: int) -> Callable[[Rows], Labels]:
    """A fitted predictor of labels."""
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    words.fit([example.text for _, example in train])

    def features(rows: Rows) -> csr_matrix:
        places = np.arange(len(rows)), np.array([client for client, _ in rows])
        own = csr_matrix((np.full(len(rows), INTERCEPT), places), (len(rows), clients))
        return csr_matrix(hstack([own, words.transform([example.text for _, example in rows])]))

    fitted = [
        LogisticRegression(C=penalty, max_iter=2000).fit(features(train), _labels(train))
        for penalty in PENALTIES
    ]
    best = max(fitted, key=lambda model: model.score(features(held), _labels(held)))
    return lambda rows: np.asarray(best.predict(features(rows)), np.int64)


def _labels(rows: Rows) -> Labels:
    return np.array([example.label for _, example in rows], np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--clients", type=int, required=True)
    given = parser.parse_args()
    table = Table("", "accuracy, %", "macro-F1, %", title=f"mean over {given.clients} clients")
    found = baselines(given.task, DataSettings(path=given.data, clients=given.clients))
    for name, figures in found.items():
        accuracy = np.mean([own.accuracy for own in figures.values()])
        macro_f1 = np.mean([own.macro_f1 for own in figures.values()])
        table.add_row(name, f"{accuracy:.1%}", f"{macro_f1:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
