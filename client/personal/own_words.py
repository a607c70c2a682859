"""A client's own words: an n-gram model of its texts, mixed into a language model's probabilities.

The tokens of the owner's training texts are counted. A token that the owner has used after the same
words gets more probability. After words that the owner has not used, only the owner's token
frequencies count, with share a. The counts back off to the language model:

    p₁(w) = (1 − a)·p(w) + a·c(w)/c
    pₖ(w) = (t·c(h, w) + T(h)·pₖ₋₁(w)) / (t·c(h) + T(h))   after the last k − 1 tokens h, k = 2, 3

c counts tokens after h, and T(h) is the number of different tokens after h. This is Witten and
Bell's interpolation ("The zero-frequency problem", 1991), with a trust t that multiplies the
counts. The owner's validation texts choose a and t. If both are 0, the result is the language
model. Nothing is trained, and the texts stay on the client.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import LedgerError
from samara.shared.storage.kept_file import KeptFile

OWN_WORDS_FILE = "own_words.json"
"""Name of the file with own words, in a client's folder of a run and in an exported folder."""
ORDER = 3
"""Maximum number of tokens in an n-gram."""
SHARES = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Values of the share a to choose from."""
TRUSTS = (0.0, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Values of the trust t to choose from."""
Floats = NDArray[np.float64]


class OwnText(NamedTuple):
    """A tokenized text that its owner has written.

    Attributes:
        before: preceding tokens, as many as an n-gram reads.
        tokens: tokens of the text; only these are counted.
    """

    before: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def behind(cls, before: Sequence[int], tokens: Sequence[int]) -> Self:
        """Return a text that keeps only the last `ORDER` − 1 of all preceding tokens."""
        return cls(tuple(before[max(0, len(before) - ORDER + 1) :]), tuple(tokens))

    def contexts(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield (preceding tokens, token) for each token of the text.

        There are at most `ORDER` − 1 preceding tokens.
        """
        read = self.before + self.tokens
        for index, token in enumerate(self.tokens, len(self.before)):
            yield read[max(0, index - ORDER + 1) : index], token


class Evidence(NamedTuple):
    """The owner's counts for n tokens of a text, each after its last 0, 1, … preceding tokens.

    Attributes:
        shares: number of times that the token followed, divided by the number of tokens that
            followed, float64 [n, ORDER].
        ratios: number of tokens that followed, divided by the number of different tokens, float64
            [n, ORDER]; 0 if no token followed.
    """

    shares: Floats
    ratios: Floats

    def mixed(self, probabilities: Floats, share: float, trust: float) -> Floats:
        """Return the probabilities of n tokens after mixing, float64 [n].

        Args:
            probabilities: the language model's probabilities of the tokens, float64 [n].
            share: weight a of the token frequencies without context.
            trust: factor t of the counts.
        """
        for k, (shares, ratios) in enumerate(zip(self.shares.T, self.ratios.T, strict=True)):
            weight = _own_weight(k, ratios, share, trust)
            probabilities = (1 - weight) * probabilities + weight * shares
        return probabilities


@dataclass(frozen=True)
class OwnWords:
    """A client's n-gram counts, with the weights of their mixture with the language model.

    Attributes:
        texts: texts that are counted.
        share: weight a of the token frequencies without context.
        trust: factor t of the counts.
        made_of: hashes in hex of the model and the texts with which share and trust were chosen.
    """

    texts: tuple[OwnText, ...]
    share: float = 0.0
    trust: float = 0.0
    made_of: str = ""

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read own words from JSON.

        Raises:
            ValueError, KeyError, TypeError: if the content is invalid.
        """
        texts = tuple(OwnText(tuple(before), tuple(own)) for before, own in content["texts"])
        if not all(type(token) is int and token >= 0 for text in texts for token in sum(text, ())):
            raise ValueError("its tokens are not whole numbers")
        share, trust = float(content["share"]), float(content["trust"])
        if not (0 <= share < 1 and 0 <= trust < math.inf):
            raise ValueError("its weights are out of range")
        return cls(texts, share, trust, str(content["made_of"]))

    @property
    def change_nothing(self) -> bool:
        """True if share and trust are 0. The mixture then equals the language model."""
        return not (self.share or self.trust)

    def mix(self, probabilities: Floats, before: Sequence[int]) -> Floats:
        """Return the mixed probabilities of the next token, float64 [vocabulary].

        Args:
            probabilities: probabilities of the language model, float64 [vocabulary].
            before: tokens so far.
        """
        mixed = probabilities
        for k, followed in self._after(before):
            weight = _own_weight(k, followed.ratio, self.share, self.trust)
            mixed = (1 - weight) * mixed
            mixed[followed.tokens] += weight * followed.counts / followed.total
        return mixed

    def mix_logits(self, logits: NDArray[np.float32], before: Sequence[int]) -> NDArray[np.float32]:
        """Return the logarithms of the mixed probabilities, float32 [vocabulary].

        Args:
            logits: logits of the language model, float32 [vocabulary].
            before: tokens so far.
        """
        if self.change_nothing:
            return logits
        with np.errstate(divide="ignore"):
            mixed = np.log(self.mix(_softmax(logits), before))
        return mixed.astype(np.float32)

    def score(self, logits: Iterator[NDArray[np.float32]], text: OwnText) -> tuple[float, float]:
        """Return a text's mean log-likelihood per token, and its share of tokens ranked first.

        Args:
            logits: logits of the language model at the text's tokens, in parts of any length,
                float32 [length, vocabulary].
            text: the text.
        """
        contexts = list(text.contexts())
        rows = (row for part in logits for row in part)
        own, most = np.empty(len(contexts)), np.empty(len(contexts))
        for index, (row, (before, token)) in enumerate(zip(rows, contexts, strict=True)):
            mixed = self.mix(_softmax(row), before)
            own[index], most[index] = mixed[token], mixed.max()
        return float(np.log(own).mean()), float((own >= most).mean())

    def evidence(self, text: OwnText) -> Evidence:
        """Return the owner's counts for the tokens of a text."""
        contexts = list(text.contexts())
        shares, ratios = np.zeros((2, len(contexts), ORDER))
        for index, (before, token) in enumerate(contexts):
            for k, followed in self._after(before):
                counts = followed.counts[followed.tokens == token]
                shares[index, k] = counts.sum() / followed.total
                ratios[index, k] = followed.ratio
        return Evidence(shares, ratios)

    def _after(self, before: Sequence[int]) -> Iterator[tuple[int, "_Followed"]]:
        """Yield (k, tokens that have followed the last k tokens of a text) for k = 0, 1, …."""
        for k in range(min(ORDER, len(before) + 1)):
            if followed := self._followed.get(tuple(before[len(before) - k :])):
                yield k, followed

    @cached_property
    def _followed(self) -> dict[tuple[int, ...], "_Followed"]:
        """Tokens that follow each context of at most `ORDER` − 1 tokens."""
        counted: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for text in self.texts:
            for before, token in text.contexts():
                for k in range(min(ORDER, len(before) + 1)):
                    counted[before[len(before) - k :]][token] += 1
        return {
            context: _Followed(
                np.array(list(counts), np.int64), np.array(list(counts.values()), np.float64)
            )
            for context, counts in counted.items()
        }


class _Followed(NamedTuple):
    """The different tokens that follow a context, int64 [n], with their counts, float64 [n]."""

    tokens: NDArray[np.int64]
    counts: Floats

    @property
    def total(self) -> float:
        """Number of tokens that follow."""
        return float(self.counts.sum())

    @property
    def ratio(self) -> float:
        """Number of tokens that follow, divided by the number of different tokens."""
        return self.total / len(self.tokens)


def _softmax(logits: NDArray[np.float32]) -> Floats:
    """Return the probabilities of logits, float64 [vocabulary]."""
    powers: Floats = np.exp(logits.astype(np.float64) - logits.max())
    powers /= powers.sum()
    return powers


def _own_weight(k: int, ratios: Any, share: float, trust: float) -> Any:
    """Return the weight of the counts after a context of k tokens; `ratios` is as in `Evidence`."""
    return share * (ratios > 0) if k == 0 else trust * ratios / (1 + trust * ratios)


def choose_own_words(
    train: Sequence[OwnText],
    validation: Sequence[OwnText],
    log_likelihoods: Callable[[int], Floats],
) -> OwnWords:
    """Return a client's own words with the share and trust that suit its validation texts best.

    Share and trust minimize the loss of the validation texts. They stay 0 unless the loss falls
    below the language model's loss by more than one standard error over the texts. They also stay 0
    with fewer than two validation texts.

    Args:
        train: texts that are counted.
        validation: texts that choose the weights.
        log_likelihoods: function that takes the index of a validation text, and returns the
            language model's log-likelihoods of its tokens, float64 [tokens].
    """
    unmixed = OwnWords(tuple(train))
    if len(validation) < 2 or not train:
        return unmixed
    settings = list(product(SHARES, TRUSTS))
    losses = np.empty((len(settings), len(validation)))
    for index, text in enumerate(validation):
        evidence, model = unmixed.evidence(text), np.exp(log_likelihoods(index))
        for number, (share, trust) in enumerate(settings):
            mixed = evidence.mixed(model, share, trust)
            losses[number, index] = -np.log(np.maximum(mixed, np.finfo(np.float64).tiny)).sum()
    best = int(losses.sum(axis=1).argmin())
    gains = losses[0] - losses[best]
    if gains.mean() <= gains.std(ddof=1) / math.sqrt(len(gains)):
        return unmixed
    share, trust = settings[best]
    return OwnWords(tuple(train), share, trust)


class OwnWordsFile(KeptFile[OwnWords | None]):
    """The file with a client's `OwnWords` in its folder of a run; a damaged file reads as None."""

    name = OWN_WORDS_FILE
    damaged = (
        "{file}: the own words cannot be read: {problem}; the client does not use them until it "
        "has made them again"
    )
    is_needed = False
    error = LedgerError
    style: ClassVar = {}

    def _to_json(self, content: OwnWords | None) -> Any:
        return content and asdict(content)

    def _parse(self, value: Any) -> OwnWords:
        return OwnWords.parse(value)
