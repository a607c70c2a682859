"""The settings that are a run's terms: defaults, ranges, and parsing of received values.

The terms are declared here once, without libraries that a phone lacks. `RunConfig` uses these
defaults and ranges, and both sides of a federation use them to parse received settings. ``python
docs/tables.py`` writes them for the phone's page (devices/phone/web/src/term-settings.ts).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from samara.shared.errors import ScenarioError
from samara.shared.protocol.layout import LABEL_BIAS_GROUP

MOST_WHOLE = 2**32 - 1
MOMENTS = r"^(end|every [1-9]\d{0,6} rounds?|on-data|always)$"
"""Pattern of ``personal.when``."""


@dataclass(frozen=True)
class Term:
    """The default and the allowed values of a setting.

    Attributes:
        least: smallest allowed number.
        most: largest allowed number. None means no limit, or `MOST_WHOLE` for an integer.
        above: whether the number must exceed `least`.
        default: value if stored settings lack the term; None if the term is required.
        words: allowed texts; empty for any.
        pattern: pattern of a text; empty for any.
    """

    least: float = 0
    most: float | None = None
    above: bool = False
    default: bool | int | float | str | None = None
    words: tuple[str, ...] = ()
    pattern: str = ""

    def holds(self, number: float, most: float) -> bool:
        """Return whether a number is in the range.

        Args:
            number: the number.
            most: largest number if the range has no upper limit.
        """
        is_enough = number > self.least if self.above else number >= self.least
        return is_enough and number <= (most if self.most is None else self.most)

    def describe(self, most: float | None = None) -> str:
        """Return the range in words."""
        most = most if self.most is None else self.most
        begin = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return begin + (" on" * (not self.above) if most is None else f" to {most:.16g}")


TERMS: dict[str, Term] = {
    "method": Term(),
    "seed": Term(most=2**63 - 1),
    "rounds": Term(1, 1_000_000),
    "steps": Term(1, 2**16 - 1),
    "queries": Term(1, 2**16 - 1),
    "batch": Term(1),
    "epsilon": Term(most=1, above=True),
    "differences": Term(words=("central", "forward", "components")),
    "objective": Term(default="cross-entropy"),
    "learning-rate": Term(),
    "clip": Term(),
    "seed-policy": Term(words=("shared", "independent", "pool")),
    "pool-size": Term(1, 2**20),
    "cohort.timeout": Term(above=True),
    "cohort.minimum": Term(1),
    "cohort.clusters": Term(2, 64),
    "cohort.clustering-rounds": Term(1),
    "evaluate.every": Term(),
    "evaluate.test": Term(),
    "evaluate.best": Term(),
    "evaluate.retrieved": Term(most=64, default=0),
    "personal.rounds": Term(most=1_000_000),
    "personal.when": Term(default="end", pattern=MOMENTS),
    "personal.retrain": Term(default=False),
    "personal.own-words": Term(default=False),
    "personal.prior": Term(default="own", words=("own", "common")),
    "personal.learning-rate": Term(default="auto"),
    "personal.pull": Term(most=0.5, above=True, default=0.0625),
    "personal.part": Term(default=LABEL_BIAS_GROUP),
    "adapter.label-bias": Term(default=False),
    "privacy.mode": Term(default="none", words=("none", "central", "local", "distributed")),
    "privacy.clip": Term(most=1e6, above=True, default=1.0),
    "privacy.adaptive-clip": Term(default=False),
    "privacy.noise-multiplier": Term(most=1e6, default=0.0),
    "privacy.epsilon": Term(most=1e6, default=0.0),
    "privacy.delta": Term(most=1, above=True, default=1e-5),
    "privacy.honest-share": Term(most=1, default=0.0),
    "privacy.secure-aggregation": Term(default=False),
    "privacy.bucket": Term(most=2**20, default=0),
}
"""The terms by dotted key. Automatic values, such as ``steps`` 0, must have been replaced."""


def read_text(settings: Mapping[str, Any], key: str) -> str:
    """Return the value of a text setting.

    Raises:
        ScenarioError: if it is missing, not a text, or a word that this version does not know.
    """
    term = TERMS[key]
    value = settings.get(key, term.default)
    if type(value) is not str:
        raise ScenarioError(f"{key}: {value!r} is not a text")
    is_known = not term.words or value in term.words
    if not is_known or (term.pattern and not re.fullmatch(term.pattern, value)):
        raise ScenarioError(f"{key}: {value!r} is unknown to this version")
    return value


def read_flag(settings: Mapping[str, Any], key: str) -> bool:
    """Return a boolean setting.

    Raises:
        ScenarioError: if it is missing or of another type.
    """
    value = settings.get(key, TERMS[key].default)
    if type(value) is not bool:
        raise ScenarioError(f"{key}: {value!r} is neither true nor false")
    return value


def read_whole(settings: Mapping[str, Any], key: str, most: int = MOST_WHOLE) -> int:
    """Return an integer setting within its range.

    Args:
        settings: settings by dotted key.
        key: dotted key of the setting.
        most: largest value if the range has no upper limit.

    Raises:
        ScenarioError: if it is missing, of another type or out of range.
    """
    term = TERMS[key]
    value = settings.get(key, term.default)
    if type(value) is not int or not term.holds(value, most):
        raise ScenarioError(f"{key}: {value!r} is not a whole number {term.describe(most)}")
    return value


def read_number(settings: Mapping[str, Any], key: str) -> float:
    """Return a finite number setting within its range.

    Raises:
        ScenarioError: if it is missing, of another type or out of range.
    """
    term = TERMS[key]
    value = settings.get(key, term.default)
    if type(value) is int:
        value = float(value)
    if type(value) is not float or not isfinite(value) or not term.holds(value, value):
        raise ScenarioError(f"{key}: {value!r} is not a number {term.describe()}")
    return value


def read_rate(settings: Mapping[str, Any], key: str) -> float | None:
    """Return a step-size setting; None if it is estimated.

    Raises:
        ScenarioError: if it is missing, of another type or out of range.
    """
    is_open = settings.get(key, TERMS[key].default) == "auto"
    return None if is_open else read_number(settings, key)
