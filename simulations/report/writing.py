"""Scores and texts of a run's passages, for the terminal and the page."""

from dataclasses import dataclass
from math import isnan
from pathlib import Path

from rich.table import Table

from samara.shared.results.result import RunResult
from samara.shared.tasks.embedded import STYLE_TASK
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.style import style_ceilings
from samara.simulations.writing.passages import Passage, read_passages
from samara.simulations.writing.scores import REPRODUCED_WORDS, WritingScores, writing_scores

_SHOWN_CLIENTS = 12
_SHOWN_PASSAGES = 2


@dataclass(frozen=True)
class Writing:
    """The passages of a run's models, and their scores.

    Attributes:
        scores: scores by model.
        shown: passages of the first clients, by client.
        count: number of passages that continue beginnings of test texts.
        ceilings: for writers of generated styles, the largest possible shares of texts in complete
            style, for a common model and for personal models; None for other clients.
    """

    scores: dict[str, WritingScores]
    shown: dict[int, list[Passage]]
    count: int
    ceilings: tuple[float, float] | None

    @property
    def headings(self) -> list[str]:
        """The names of the scores."""
        return list(next(iter(self.scores.values())).agreement)

    def note(self) -> str:
        """Return an explanation of the scores, with the largest possible shares of styles."""
        text = (
            f"greedy texts after {self.count:,} beginnings; reproduced: share of training texts "
            f"whose next {REPRODUCED_WORDS} words a model writes; longest: most such words"
        )
        if self.ceilings is None:
            return text
        common, own = self.ceilings
        return (
            f"{text}; whole style: at most {common:.1%} with a common model, {own:.0%} with "
            "personal models"
        )


def read_writing(folder: Path, result: RunResult) -> Writing | None:
    """Return the passages of a run's models and their scores; None if the run has no passages.

    Raises:
        SamaraError: if the run's file cannot be read.
    """
    passages = read_passages(folder)
    if not passages:
        return None
    config = result.config
    is_styled = (config["task"], config["data.path"]) == (STYLE_TASK, EMBEDDED_DATA)
    shown: dict[int, list[Passage]] = {}
    for one in passages:
        own = shown.setdefault(one.client, []) if one.split == "test" else []
        if len(own) < _SHOWN_PASSAGES:
            own.append(one)
    return Writing(
        writing_scores(passages, is_styled),
        dict(list(shown.items())[:_SHOWN_CLIENTS]),
        sum(one.split == "test" for one in passages),
        style_ceilings(int(config["data.clients"])) if is_styled else None,
    )


def writing_table(writing: Writing) -> Table:
    """Return a table of every model's scores."""
    table = Table(title="Texts of the models", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in (*writing.headings, "reproduced", "longest"):
        table.add_column(heading.replace(" ", "\n", 1), justify="right")
    for name, own in writing.scores.items():
        shares = [f"{value:.1%}" for value in own.agreement.values()]
        table.add_row(name, *shares, shown_share(own.reproduced), str(own.longest))
    return table


def shown_share(share: float) -> str:
    """Format a share in percent; empty for NaN."""
    return "" if isnan(share) else f"{share:.1%}"
