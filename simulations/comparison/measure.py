"""The measure by which runs are compared: accuracy, or bits per byte for a generation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from samara.shared.results.result import ClientMetrics


class TextMetrics(ClientMetrics):
    """The metrics of a client's texts; ``examples`` counts tokens, and ``accuracy`` is per token.

    Attributes:
        bytes: length of the texts in UTF-8, in bytes.
    """

    bytes: float

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss per token."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """The loss of all tokens in bits, divided by the number of bytes of the texts.

        This number is comparable between tokenizers.
        """
        return self.loss * self.examples / math.log(2) / self.bytes


class Figures(NamedTuple):
    """The two metrics of a client that are compared.

    Attributes:
        quality: accuracy, or minus the bits per byte; higher is better.
        second: macro-F1 or perplexity, shown beside the quality.
    """

    quality: float
    second: float


@dataclass(frozen=True)
class Measure:
    """The wording and formatting of the metrics by which runs are compared.

    Attributes:
        name: displayed name of the quality.
        unit: unit after a displayed value, with the space before it.
        gap: unit of a difference.
        gained: unit of a gain.
        better: words between a value and a worse value, such as "above".
        worse: words between a value and a better value, such as "below".
        second: name of the secondary metric.
        factor: displayed value divided by the quality; negative if lower displayed values are
            better.
        digits: decimals of a displayed value.
        second_factor: displayed value divided by the secondary metric.
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
        """The secondary metric's name with its unit."""
        return f"{self.second},{self.unit}" if self.unit else self.second

    def level(self, quality: float) -> str:
        """Format a quality without its unit."""
        return f"{round(quality * self.factor, 6):.{self.digits}f}"

    def shown(self, quality: float) -> str:
        """Format a quality with its unit."""
        return self.level(quality) + self.unit.strip()

    def interval(self, low: float, high: float) -> str:
        """Format an interval of qualities; the end displayed as the lower comes first."""
        ends = (low, high) if self.factor > 0 else (high, low)
        return " – ".join(map(self.level, ends))

    def size(self, spread: float) -> str:
        """Format a distance between qualities without a sign."""
        return f"{round(spread * abs(self.factor), 6):.{self.digits}f}"

    def gain(self, difference: float) -> str:
        """Format a difference of qualities with its sign; positive is better."""
        return _signed(difference * abs(self.factor), self.digits)

    def place(self, difference: float) -> str:
        """Return a difference of qualities in words, such as "2.7 points above" or "level with"."""
        if not float(self.size(difference)):
            return "level with"
        side = self.worse if difference < 0 else self.better
        return f"{self.size(abs(difference))} {self.gap} {side}"

    def second_level(self, figure: float) -> str:
        """Format a value of the secondary metric without its unit."""
        return f"{round(figure * self.second_factor, 6):.1f}"

    def second_gain(self, difference: float) -> str:
        """Format a difference of the secondary metric with its sign."""
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
    """Return the measure by which clients with such metrics are compared."""
    return BITS_PER_BYTE if any(isinstance(own, TextMetrics) for own in metrics) else ACCURACY


def figures_of(metrics: ClientMetrics) -> Figures:
    """Return the two compared metrics of a client."""
    if isinstance(metrics, TextMetrics):
        return Figures(-metrics.bits_per_byte, metrics.perplexity)
    return Figures(metrics.accuracy, metrics.macro_f1)


def named_figures(metrics: ClientMetrics) -> dict[str, float]:
    """Return all metrics of a client by name."""
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
        **({} if metrics.auc is None else {"auc": metrics.auc}),
    }


def _signed(number: float, digits: int) -> str:
    return f"{round(number, digits) + 0.0:+.{digits}f}".replace("-", "−")
