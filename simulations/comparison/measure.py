"""The measure that runs are compared by: accuracy, or in a generation bits per byte."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from samara.shared.result import ClientMetrics


class TextMetrics(ClientMetrics):
    """The metrics of a client's texts; ``examples`` are tokens, and ``accuracy`` is of these.

    Attributes:
        bytes: length of the texts in UTF-8.
    """

    bytes: float

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss per token."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """The loss of all tokens in bits, over the bytes: comparable across tokenizers."""
        return self.loss * self.examples / math.log(2) / self.bytes


class Figures(NamedTuple):
    """The two figures of a client that are compared.

    Attributes:
        quality: accuracy, or minus the bits per byte: more is better.
        second: macro-F1 or perplexity, shown beside it.
    """

    quality: float
    second: float


@dataclass(frozen=True)
class Measure:
    """The words and the form of the figures that runs are compared by.

    Attributes:
        name: name of the quality as it is shown.
        unit: unit behind a shown level, with the space before it.
        gap: what a difference is counted in.
        gained: what a gain is counted in.
        better, worse: words before what a level is compared with.
        second: name of the second figure.
        factor: what a quality is multiplied by where it is shown; below 0 if less is better there.
        digits: decimals of a shown level.
        second_factor: what the second figure is multiplied by.
    """

    name: str
    unit: str
    gap: str
    gained: str
    better: str
    worse: str
    second: str
    factor: float
    digits: int
    second_factor: float

    @property
    def heading(self) -> str:
        """The name with its unit, for an axis or a column."""
        return f"{self.name},{self.unit}" if self.unit else self.name

    @property
    def second_heading(self) -> str:
        """The second figure's name with its unit."""
        return f"{self.second},{self.unit}" if self.unit else self.second

    def level(self, quality: float) -> str:
        """Return a quality as text, without the unit, rounded in decimal."""
        return f"{round(quality * self.factor, 6):.{self.digits}f}"

    def shown(self, quality: float) -> str:
        """Return a quality as text with its unit."""
        return self.level(quality) + self.unit.strip()

    def interval(self, low: float, high: float) -> str:
        """Return an interval of qualities as text, the lower shown end first."""
        ends = (low, high) if self.factor > 0 else (high, low)
        return " – ".join(map(self.level, ends))

    def size(self, spread: float) -> str:
        """Return a distance between qualities as text, without a sign."""
        return f"{round(spread * abs(self.factor), 6):.{self.digits}f}"

    def gain(self, difference: float) -> str:
        """Return a difference of qualities with its sign; more is better."""
        return _signed(difference * abs(self.factor), self.digits)

    def place(self, difference: float) -> str:
        """Return where a difference of qualities puts a column: 2.7 points above, or level with."""
        if not float(self.size(difference)):
            return "level with"
        side = self.worse if difference < 0 else self.better
        return f"{self.size(abs(difference))} {self.gap} {side}"

    def second_level(self, figure: float) -> str:
        """Return a second figure as text, without the unit."""
        return f"{round(figure * self.second_factor, 6):.1f}"

    def second_gain(self, difference: float) -> str:
        """Return a difference of second figures with its sign."""
        return _signed(difference * self.second_factor, 1)


ACCURACY = Measure(
    name="accuracy",
    unit=" %",
    gap="points",
    gained="points of accuracy",
    better="above",
    worse="below",
    second="macro-F1",
    factor=100.0,
    digits=1,
    second_factor=100.0,
)
BITS_PER_BYTE = Measure(
    name="bits per byte",
    unit="",
    gap="bits per byte",
    gained="bits per byte saved",
    better="better than",
    worse="worse than",
    second="perplexity",
    factor=-1.0,
    digits=3,
    second_factor=1.0,
)


def measure_of(metrics: Iterable[ClientMetrics]) -> Measure:
    """Return the measure that clients with such metrics are compared by."""
    return BITS_PER_BYTE if any(isinstance(own, TextMetrics) for own in metrics) else ACCURACY


def figures_of(metrics: ClientMetrics) -> Figures:
    """Return the figures of a client that are compared."""
    if isinstance(metrics, TextMetrics):
        return Figures(-metrics.bits_per_byte, metrics.perplexity)
    return Figures(metrics.accuracy, metrics.macro_f1)


def named_figures(metrics: ClientMetrics) -> dict[str, float]:
    """Return all figures of a client by name."""
    if isinstance(metrics, TextMetrics):
        return {
            "tokens": metrics.examples,
            "accuracy": metrics.accuracy,
            "loss": metrics.loss,
            "perplexity": metrics.perplexity,
            "bits_per_byte": metrics.bits_per_byte,
        }
    return {
        "examples": metrics.examples,
        "accuracy": metrics.accuracy,
        "macro_f1": metrics.macro_f1,
        "loss": metrics.loss,
    }


def _signed(number: float, digits: int) -> str:
    return f"{round(number, digits) + 0.0:+.{digits}f}".replace("-", "−")
