"""Accuracy of private parts by the number of the user's examples to which they are fitted.

The common model is trained on all examples. A curve includes the users with at least as many
training examples as its last number, so that all its points have the same users.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.accuracy.people_references import Person, accuracy_of, contrasts_of
from samara.client.personal.few_examples import COUNTS
from samara.client.personal.label_bias import base_rate
from samara.client.personal.lbfgs import fit_softmax
from samara.client.personal.softmax_fit import Examples, fit_private_part
from samara.shared.terms.columns import BASE_RATE, INTERCEPT, PERSONALIZED
from samara.simulations.comparison.statistics import summarize

LEAST_USERS = 10
"""Minimum number of users in a curve."""
MOST_HAVE = 20
"""Number of training examples that most users have."""
METHODS = (BASE_RATE, INTERCEPT, PERSONALIZED)
Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""Accuracy of every user, by method and number of examples; NaN for users with fewer examples."""


def curves(people: Sequence[Person]) -> Curves:
    """Return each user's accuracy after fits to the first training examples of a random order."""
    random = np.random.default_rng(0)
    found: dict[str, dict[str, list[float]]] = {
        name: {str(count): [] for count in COUNTS} for name in METHODS
    }
    for person in people:
        order = random.permutation(len(person.train.labels))
        for count in COUNTS:
            enough = len(order) >= count and len(person.test.labels) > 0
            own = person.train.at(np.sort(order[:count]))
            told = _accuracies(person, own) if enough else dict.fromkeys(found, np.nan)
            for name, accuracy in told.items():
                found[name][str(count)].append(accuracy)
    return found


def groups(found: Curves) -> dict[int, dict[str, NDArray[np.float64]]]:
    """Return a group of curves for each number of examples that enough users have.

    Returns:
        Accuracies by that number and by method, float64 [users, numbers of examples up to that
        number].
    """
    counts = sorted(map(int, found[BASE_RATE]))
    by_most = {}
    for index, most in enumerate(counts):
        known = ~np.isnan(np.array(found[BASE_RATE][str(most)], np.float64))
        if index and known.sum() >= LEAST_USERS:
            by_most[most] = {
                name: np.array([by_count[str(n)] for n in counts[: index + 1]], np.float64)[
                    :, known
                ].T
                for name, by_count in found.items()
            }
    return by_most


def curve_table(found: Curves, title: str) -> Table:
    """Return a table of mean accuracies, with several rows for each group in `groups`."""
    table = Table("users with at least", "users", "own examples", *METHODS, title=title)
    for most, by_method in groups(found).items():
        for index, count in enumerate(COUNTS[: COUNTS.index(most) + 1]):
            means = [f"{100 * by_method[name][:, index].mean():.1f}" for name in METHODS]
            users = len(by_method[BASE_RATE])
            table.add_row(str(most), str(users), str(count), *means)
    return table


def draw_curves(found: Mapping[str, Curves], file: Path) -> None:
    """Draw a panel for each set, with the curves of its largest and of its smallest user group.

    Bands are 95 % intervals of the means over the larger group of users.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure = Figure(figsize=(3.2 * len(found), 3.6), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (name, own) in zip(panels, found.items(), strict=True):
        by_most = groups(own)
        shown = dict.fromkeys((min(max(by_most), MOST_HAVE), max(by_most))) if by_most else {}
        titles = [name]
        for most, (style, line) in zip(shown, (("-", "solid"), (":", "dotted")), strict=False):
            titles.append(f"{line}: {len(by_most[most][BASE_RATE])} users with {most} or more")
            for method, colour in zip(METHODS, ("0.5", "tab:blue", "tab:orange"), strict=True):
                values = 100 * by_most[most][method]
                counts, means = COUNTS[: values.shape[1]], values.mean(axis=0)
                axes.plot(
                    counts, means, style, color=colour, marker="o", markersize=3, label=method
                )
                if style == "-":
                    ends = np.array([(e.low, e.high) for e in map(summarize, values.T)])
                    axes.fill_between(counts, *ends.T, color=colour, alpha=0.15, linewidth=0)
        axes.set_title("\n".join(titles), fontsize="small")
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("own examples")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy, %")
    lines = panels[0].get_lines()[: len(METHODS)]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(METHODS), frameon=False)
    figure.savefig(file, dpi=120)


def _accuracies(person: Person, own: Examples) -> dict[str, float]:
    """Return the accuracy of each method after a fit to some of the user's examples."""
    labels = own.offsets.shape[1]
    rows = contrasts_of(own)
    usual = base_rate(own.labels, labels).argmax()
    without = own._replace(features=own.features[:, :0])
    intercept = fit_private_part(without, rows, fit_softmax)
    wide = intercept._replace(readout=np.zeros((labels - 1, own.features.shape[1])))
    return {
        BASE_RATE: float(np.mean(person.test.labels == usual)),
        INTERCEPT: accuracy_of(person, wide),
        PERSONALIZED: accuracy_of(person, fit_private_part(own, rows, fit_softmax)),
    }
