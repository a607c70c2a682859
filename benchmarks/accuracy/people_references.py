"""References that predict people's labels without a federation, by scikit-learn on all data.

- majority: the most frequent label of all training rows;
- common probe: logistic regression on all training rows' features;
- base rate + words: logistic regression on TF-IDF of the words, with an intercept per user;
- common probe + intercepts: logistic regression on features, with an intercept per user;
- pooled, then private: the common weights of the regression above; every user adds an intercept and
  a readout (`fit_private_part`). First-order training of the common model would give this result.

The values of C are chosen by accuracy on validation examples.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack

from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.softmax_fit import Examples, SoftmaxFit, fit_private_part
from samara.shared.tasks.contrasts import contrasts

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Values of C for standardized features, from strong to weak regularization."""
WORD_STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
INTERCEPT = 3.0
"""Value of a user's indicator feature. A large value weakens the penalty on intercepts."""
SPLITS = ("train", "validation", "test")
Labels = NDArray[np.int64]
Floats = NDArray[np.float64]


class Person(NamedTuple):
    """A user's texts and examples.

    Attributes:
        parts: examples of each of `SPLITS`.
        texts: texts of each of `SPLITS`.
    """

    parts: Sequence[Examples]
    texts: Sequence[list[str]]

    @property
    def train(self) -> Examples:
        """Training examples."""
        return self.parts[0]

    @property
    def validation(self) -> Examples:
        """Validation examples."""
        return self.parts[1]

    @property
    def test(self) -> Examples:
        """Test examples."""
        return self.parts[2]


def references(people: Sequence[Person]) -> dict[str, list[float]]:
    """Return each reference's accuracy for every user; NaN without test examples."""
    parts = [[person.parts[i] for person in people] for i in range(len(SPLITS))]
    labels = [np.concatenate([own.labels for own in part]) for part in parts]
    sizes = [[len(own.labels) for own in part] for part in parts]
    users = [np.repeat(np.arange(len(people)), size) for size in sizes]
    features = _standardized([np.concatenate([own.features for own in part]) for part in parts])
    words = _words([[text for p in people for text in p.texts[i]] for i in range(len(SPLITS))])
    own = [_own_features(each, len(people)) for each in users]
    probe = _best(features, labels, STRENGTHS)
    with_words = _best(_beside(own, words), labels, WORD_STRENGTHS)
    with_intercepts = _best(_beside(own, features), labels, STRENGTHS)
    told = {
        "majority": np.full(len(labels[2]), np.bincount(labels[0]).argmax()),
        "common probe": probe.predict(features[2]),
        "base rate + words": with_words.predict(_beside(own, words)[2]),
        "common probe + intercepts": with_intercepts.predict(_beside(own, features)[2]),
        "pooled, then private": _then_private(people, users, features, with_intercepts),
    }
    return {
        name: accuracies(answers == labels[2], users[2], len(people))
        for name, answers in told.items()
    }


def accuracies(right: NDArray[np.bool_], users: Labels, count: int) -> list[float]:
    """Return each user's share of right answers, for `count` users; NaN without examples."""
    return [
        float(right[users == user].mean()) if np.any(users == user) else np.nan
        for user in range(count)
    ]


def accuracy_of(person: Person, fit: SoftmaxFit) -> float:
    """Return the accuracy on a user's test examples; NaN without test examples."""
    if not len(person.test.labels):
        return np.nan
    added = fit.added_scores(person.test.features, contrasts_of(person.test))
    right = (person.test.offsets + added).argmax(axis=1) == person.test.labels
    return float(right.mean())


def contrasts_of(examples: Examples) -> Floats:
    """Return the contrasts of the labels, float64 [labels − 1, labels]."""
    return contrasts(examples.offsets.shape[1]).astype(np.float64)


def _then_private(
    people: Sequence[Person], users: Sequence[Labels], features: Sequence[Floats], pooled: Any
) -> Labels:
    """Return the labels predicted for test rows by common weights plus each user's fit."""
    offsets = [each @ pooled.coef_[:, len(people) :].T for each in features]
    if offsets[0].shape[1] == 1:  # for two labels, scikit-learn has one row
        offsets = [np.hstack([-each / 2, each / 2]) for each in offsets]
    rows = contrasts(offsets[0].shape[1]).astype(np.float64)
    answers = np.zeros(len(users[2]), np.int64)
    for user, person in enumerate(people):
        mine = [each == user for each in users]
        train = Examples(offsets[0][mine[0]], person.train.labels, person.train.features)
        fit = fit_private_part(train, rows, fit_softmax)
        added = fit.added_scores(person.test.features, rows)
        answers[mine[2]] = (offsets[2][mine[2]] + added).argmax(axis=1)
    return answers


def _standardized(parts: Sequence[Floats]) -> list[Floats]:
    """Return features of mean 0 and variance 1 over the training rows."""
    mean, spread = parts[0].mean(axis=0), parts[0].std(axis=0)
    spread[spread == 0] = 1.0
    return [(part - mean) / spread for part in parts]


def _words(texts: Sequence[list[str]]) -> list[Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, min_df=2).fit(texts[0])
    return [words.transform(part) for part in texts]


def _own_features(users: Labels, count: int) -> csr_matrix:
    """Return one indicator feature per user, [n, users]."""
    places = np.arange(len(users)), users
    return csr_matrix((np.full(len(users), INTERCEPT), places), (len(users), count))


def _beside(own: Sequence[csr_matrix], features: Sequence[Any]) -> list[csr_matrix]:
    pairs = zip(own, features, strict=True)
    return [csr_matrix(hstack([one, csr_matrix(other)])) for one, other in pairs]


def _best(features: Sequence[Any], labels: Sequence[Labels], strengths: Sequence[float]) -> Any:
    """Return the logistic regression on training rows with the best accuracy on validation rows."""
    from sklearn.linear_model import LogisticRegression

    models = [LogisticRegression(C=c, max_iter=300).fit(features[0], labels[0]) for c in strengths]
    return max(models, key=lambda model: model.score(features[1], labels[1]))
