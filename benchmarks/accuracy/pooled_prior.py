"""Priors of private parts that are chosen by sums over clients.

The rules are those of decision 0048. The fits, the folds and their losses are the product's own.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.people_references import Person
from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.softmax_fit import (
    INTERCEPT_DEVIATIONS,
    Examples,
    SoftmaxFit,
    fit_private_part,
    fit_under_prior,
    held_out_losses,
    log_sum_exp,
    mean_squared_norm,
    reduce_features,
)
from samara.shared.tasks.contrasts import contrasts

SLOPE_DEVIATIONS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
"""Factors of the common model's scores."""
Floats = NDArray[np.float64]


class Prior(NamedTuple):
    """Standard deviations that all clients share, of what is added to the log-odds of two labels.

    Attributes:
        intercept: s.
        readout: v, as it is used: 0 unless it is seen to help.
        best: the v with the least loss.
        gain: mean over clients of the loss without a readout, less the loss with the best.
        error: standard error of this mean over clients.
    """

    intercept: float
    readout: float
    best: float
    gain: float
    error: float


def choose_prior(examples: Sequence[Examples]) -> Prior:
    """Return the prior of clients with these training examples, by sums over them."""
    several = [own for own in examples if len(own.labels) > 1]
    by_intercept = np.array(
        [[_mean_loss(own, s, 0.0) for s in INTERCEPT_DEVIATIONS] for own in several]
    )
    intercept = INTERCEPT_DEVIATIONS[int(by_intercept.sum(axis=0).argmin())]
    losses = np.array(
        [[_mean_loss(own, intercept, v) for v in SLOPE_DEVIATIONS] for own in several]
    )
    best = int(losses.sum(axis=0).argmin())
    gains = losses[:, 0] - losses[:, best]
    error = float(gains.std(ddof=1) / np.sqrt(len(gains)))
    helps = bool(gains.mean() > error)
    chosen = SLOPE_DEVIATIONS[best]
    return Prior(intercept, chosen if helps else 0.0, chosen, float(gains.mean()), error)


def fit_with(prior: Prior, examples: Examples) -> SoftmaxFit:
    """Return the private part of a client under a prior."""
    reduced, basis = reduce_features(examples)
    squares = mean_squared_norm(examples)
    fit = fit_under_prior(
        fit_softmax, reduced, contrasts_of(examples), prior.intercept, prior.readout, squares
    )
    return fit if basis is None else fit._replace(readout=fit.readout @ basis)


def fitted_together(people: Sequence[Person]) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return every user's accuracy under what all choose together, and what that is.

    There are a row of the prior's intercept alone, one of the whole prior, and one of the share of
    the common model with a private intercept.
    """
    prior = choose_prior([person.train for person in people])
    alone = prior._replace(readout=0.0)
    found = {
        "intercept, prior together": [accuracy_of(p, fit_with(alone, p.train)) for p in people],
        "private part, prior together": [accuracy_of(p, fit_with(prior, p.train)) for p in people],
    }
    share, losses = choose_share(people)
    found["intercept, share together"] = [accuracy_of(*fit_beside(p, share)) for p in people]
    return found, prior._asdict() | {"share": share, "losses of shares": losses}


def choose_share(people: Sequence[Person]) -> tuple[float, list[float]]:
    """Return the share of the common model with the least loss on validation, and all losses.

    Each is the mean over users with validation examples, by an intercept that is fitted to the
    training examples beside that share.
    """
    several = [person for person in people if len(person.validation.labels)]
    losses = []
    for share in SHARES:
        by_user = []
        for person in several:
            scaled, fit = fit_beside(person, share)
            logits = scaled.validation.offsets + fit.intercept
            own = logits[np.arange(len(logits)), scaled.validation.labels]
            by_user.append(float(np.mean(log_sum_exp(logits)[:, 0] - own)))
        losses.append(float(np.mean(by_user)))
    return SHARES[int(np.argmin(losses))], losses


def fit_beside(person: Person, share: float) -> tuple[Person, SoftmaxFit]:
    """Return a user's examples with a share of the common scores, and an intercept beside it."""
    parts = [part._replace(offsets=share * part.offsets) for part in person.parts]
    scaled, train = Person(parts, person.texts), parts[0]
    without = train._replace(features=train.features[:, :0])
    fit = fit_private_part(without, contrasts_of(train), fit_softmax)
    labels, features = train.offsets.shape[1], train.features.shape[1]
    return scaled, fit._replace(readout=np.zeros((labels - 1, features)))


def accuracy_of(person: Person, fit: SoftmaxFit) -> float:
    """Return the accuracy on a user's test examples; NaN without any."""
    if not len(person.test.labels):
        return np.nan
    added = fit.added_scores(person.test.features, contrasts_of(person.test))
    right = (person.test.offsets + added).argmax(axis=1) == person.test.labels
    return float(right.mean())


def _mean_loss(examples: Examples, intercept: float, readout: float) -> float:
    """Return a client's mean held-out loss under a prior."""
    squares = mean_squared_norm(examples)
    reduced = reduce_features(examples)[0] if readout else examples
    losses = held_out_losses(
        fit_softmax, reduced, contrasts_of(examples), intercept, readout, squares
    )
    return float(losses.mean())


def contrasts_of(examples: Examples) -> Floats:
    """Return the contrasts of the labels, float64 [labels − 1, labels]."""
    return contrasts(examples.offsets.shape[1]).astype(np.float64)
