"""Scores of written passages: agreement with the true texts, style, and memorization."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samara.shared.tasks.metrics import exact_match, token_f1
from samara.shared.tasks.style import describe_parts
from samara.simulations.writing.passages import Passage

EXACT_MATCH = "exact match"
TOKEN_F1 = "token F1"
ROUGE_L = "ROUGE-L"
REPRODUCED_WORDS = 8
"""Number of words that a model must write for a training text to count as reproduced."""


@dataclass(frozen=True)
class WritingScores:
    """The scores of a model.

    Attributes:
        agreement: exact match, token F1 and ROUGE-L (Lin, 2004) between greedy and true texts; for
            generated styles also the share of greedy texts with each part of the writer's style.
            Each score is the mean over clients of the mean over a client's texts.
        reproduced: share of training texts whose next `REPRODUCED_WORDS` words the model writes
            after the beginning; NaN if no training text is long enough.
        longest: maximum number of words of a training text that the model writes after its
            beginning.
    """

    agreement: dict[str, float]
    reproduced: float
    longest: int


def writing_scores(passages: Sequence[Passage], has_styles: bool) -> dict[str, WritingScores]:
    """Return the scores of every model.

    Args:
        passages: passages of a run.
        has_styles: whether the clients are the writers of generated styles.
    """
    names = dict.fromkeys(name for one in passages for name in one.greedy)
    return {name: _scores_of(name, passages, has_styles) for name in names}


def reproduced_words(passage: Passage, model: str) -> int:
    """Return the number of words at the start of a model's text that equal the true text."""
    true = words_of(passage.accepted[0])
    written = words_of(passage.greedy[model])
    count = 0
    for one, other in zip(true, written, strict=False):
        if one != other:
            break
        count += 1
    return count


def words_of(text: str) -> list[str]:
    """Split a text into words and drop separators, because decoders insert spaces at separators."""
    return re.findall(r"\w+", text)


def _scores_of(name: str, passages: Sequence[Passage], has_styles: bool) -> WritingScores:
    by_client: dict[int, list[Passage]] = {}
    for one in passages:
        if one.split == "test" and name in one.greedy:
            by_client.setdefault(one.client, []).append(one)
    of_text: dict[str, Callable[[str, Sequence[str]], float]] = {
        EXACT_MATCH: exact_match,
        TOKEN_F1: token_f1,
    }
    if (rouge := _rouge_l()) is not None:
        of_text[ROUGE_L] = rouge
    agreement = {
        title: _mean_over_clients(
            [[score(one.greedy[name], one.accepted) for one in own] for own in by_client.values()]
        )
        for title, score in of_text.items()
    }
    if has_styles and by_client:
        shares = [
            describe_parts([(client, one.prompt, one.greedy[name]) for one in own])
            for client, own in by_client.items()
        ]
        agreement |= {part: float(np.mean([own[part] for own in shares])) for part in shares[0]}
    trained = [one for one in passages if one.split == "train" and name in one.greedy]
    lengths = [reproduced_words(one, name) for one in trained]
    long_enough = [
        length >= REPRODUCED_WORDS
        for one, length in zip(trained, lengths, strict=True)
        if len(words_of(one.accepted[0])) >= REPRODUCED_WORDS
    ]
    share = float(np.mean(long_enough)) if long_enough else float("nan")
    return WritingScores(agreement, share, max(lengths, default=0))


def _mean_over_clients(values: Sequence[Sequence[float]]) -> float:
    return float(np.mean([np.mean(own) for own in values])) if values else float("nan")


def _rouge_l() -> Callable[[str, Sequence[str]], float] | None:
    """Return a function that computes ROUGE-L; None if the library is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        return None
    scorer: Any = RougeScorer(["rougeL"], use_stemmer=False)

    def score(written: str, accepted: Sequence[str]) -> float:
        return float(scorer.score_multi(list(accepted), written)["rougeL"].fmeasure)

    return score
