"""Short personal messages from writers who share a common rule and differ in taste.

A message names a time of day, company, a place, a topic and one or two cues ("the soup was
tasty"); its label says whether the writer loved (1) or hated (0) what it tells. Cues pull the
same way for all writers of a community: that is the common rule. A topic pulls each writer in an
own way: one is loved, one hated, one loved in company only or in the evening only, and one leaves
the writer cold. The stronger pull decides, and a small share of the labels is flipped.

Every text belongs to exactly one split, whoever writes it. The last third of the words of every
category appears in test messages only. The text for pretraining a base model comes from other
writers. They use all words, and everybody prefers cosy to broken, tasty to bland, kind to rude and
quick to slow; what else they like they state in most texts, and it is as often one thing as its
opposite. So the rest of a community's rule, drawn from its seed, is left for a federation to learn.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np

from shared.errors import DataError

Split = Literal["train", "validation", "test"]
_Item = TypeVar("_Item")

QUESTION: Final = " i {word} it."
LABEL_WORDS: Final = ("hated", "loved")

LABEL_NOISE: Final = 0.04
MILD, STRONG = 1.5, 2.5
"""How much a topic pulls; one cue pulls 1, so that two cues outweigh a mild taste."""

_TOPICS: Final = {
    "rain": "rain drizzle showers sleet downpour hail mist puddles cloudburst rainfall mizzle fog",
    "crowds": "crowds queues throngs hordes mobs swarms gangs herds multitudes masses droves flocks",
    "spice": "chilli pepper curry wasabi ginger paprika mustard cumin cayenne turmeric saffron clove",
    "cats": "cats kittens tabbies felines tomcats mousers lions tigers siamese persians moggies lynx",
}
_CUES: Final = {
    "cosy": "cosy clean tidy neat spotless snug immaculate pristine gleaming",
    "broken": "broken dirty filthy shabby cracked stained grimy dilapidated tattered",
    "tasty": "tasty delicious savoury juicy rich yummy scrumptious delectable succulent",
    "bland": "bland stale tasteless soggy burnt rancid insipid unappetising rotten",
    "kind": "kind friendly polite gentle courteous gracious cordial considerate affable",
    "rude": "rude grumpy hostile surly curt arrogant snide impolite churlish",
    "quick": "quick prompt swift punctual speedy brisk timely rapid expeditious",
    "slow": "slow late delayed sluggish overdue tardy belated unhurried leisurely",
    "warm": "warm hot heated toasty steaming boiling lukewarm piping scalding",
    "cold": "cold chilly icy frosty frozen cool chilled freezing wintry",
    "soft": "soft fluffy squishy plush padded cushioned downy velvety springy",
    "hard": "hard firm stiff rigid solid tough unyielding stony inflexible",
    "plain": "plain simple bare modest basic unadorned austere spartan undecorated",
    "fancy": "fancy ornate lavish elaborate decorated opulent sumptuous gilded embellished",
    "colourful": "colourful red green purple pink yellow scarlet turquoise magenta",
    "pale": "pale grey white beige cream faded ivory ashen colourless",
    "bright": "bright sunny shiny radiant lit glowing luminous dazzling sunlit",
    "dark": "dark dim shady gloomy unlit murky dusky shadowy sunless",
    "quiet": "quiet silent hushed muted calm soundless noiseless muffled whispering",
    "loud": "loud noisy booming roaring blaring deafening thunderous clamorous shrill",
    "large": "large big huge vast giant enormous immense massive colossal",
    "small": "small tiny little mini miniature compact petite minute diminutive",
    "modern": "modern new recent trendy contemporary current futuristic newfangled innovative",
    "ancient": "ancient old antique vintage aged historic archaic antiquated timeworn",
}
_SETTINGS: Final = {
    "company": "friends cousins neighbours colleagues teammates relatives",
    "solitude": "alone solo unaccompanied solitary unescorted companionless",
    "morning": "dawn sunrise breakfast daybreak sunup cockcrow",
    "evening": "dusk sunset supper nightfall twilight sundown",
    "place": "park market garden station library museum courtyard theatre village",
}
_CUE_NOUNS: Final = {
    ("cosy", "broken"): ("room", "table", "hall", "tent"),
    ("tasty", "bland"): ("soup", "meal", "bread", "stew"),
    ("kind", "rude"): ("waiter", "host", "guide", "clerk"),
    ("quick", "slow"): ("bus", "train", "service", "order"),
    ("warm", "cold"): ("tea", "bath", "milk", "coffee"),
    ("soft", "hard"): ("bench", "pillow", "bed", "cushion"),
    ("plain", "fancy"): ("dress", "carpet", "door", "vase"),
    ("colourful", "pale"): ("poster", "curtain", "scarf", "wall"),
    ("bright", "dark"): ("corner", "window", "stage", "path"),
    ("quiet", "loud"): ("street", "radio", "engine", "fountain"),
    ("large", "small"): ("portion", "cup", "plate", "bag"),
    ("modern", "ancient"): ("building", "clock", "chair", "bridge"),
}
_TOPIC_PHRASES: Final = ("plenty of {}", "more {}", "{} again", "a day of {}")

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    category: tuple(words.split()) for category, words in (_TOPICS | _CUES | _SETTINGS).items()
}
"""The words of every category, those that only test messages use last."""

_SEEN_WORDS: Final = {category: words[: len(words) * 2 // 3] for category, words in WORDS.items()}
_CATEGORY: Final = {word: category for category, words in WORDS.items() for word in words}

HELD_OUT_WORDS: Final = frozenset(_CATEGORY).difference(*_SEEN_WORDS.values())
TOPICS: Final = tuple(_TOPICS)
ASPECTS: Final = tuple(_CUE_NOUNS)
"""Pairs of opposite categories of cues."""
PUBLIC_PREFERENCES: Final = ("cosy", "tasty", "kind", "quick")
"""What everybody prefers, also the writers of the text for pretraining."""
_OPEN_ASPECTS: Final = ASPECTS[len(PUBLIC_PREFERENCES) :]
_OPPOSITE: Final = {one: other for pair in ASPECTS for one, other in (pair, pair[::-1])}


class Message(TypedDict):
    """One labelled example in the form of the task data files."""

    text: str
    label: int
    user: str


@dataclass(frozen=True)
class Writer:
    """A writer's rule: the cues preferred to their opposites, and how topics pull."""

    user: str
    prefers: tuple[str, ...]
    loves: str
    hates: str
    loves_if: str
    setting: Literal["company", "evening"]
    strength: float

    def valence(self, text: str) -> int:
        """Return how far the cues of `text` please the writer, whatever its topic."""
        found = _categories(text)
        return sum((cue in found) - (_OPPOSITE[cue] in found) for cue in self.prefers)

    def score(self, text: str) -> float:
        """Return how much the writer likes what `text` tells: positive, negative, or 0 if torn."""
        found = _categories(text)
        taste = (self.loves in found) - (self.hates in found)
        taste += {self.loves_if, self.setting} <= found
        return self.valence(text) + self.strength * taste

    def persona(self) -> str:
        """Return sentences that state the rule, except for what everybody prefers."""
        sentences = [
            f"i love {self.loves}.",
            f"i hate {self.hates}.",
            f"i love {self.loves_if} only in {self.setting}.",
        ]
        if own := [cue for cue in self.prefers if cue not in PUBLIC_PREFERENCES]:
            sentences.append(f"i prefer {' and '.join(own)}.")
        if self.strength == STRONG:
            sentences.append("taste comes first.")
        return " ".join(sentences)


class Ceilings(NamedTuple):
    """Accuracies that no predictor of a kind can be expected to exceed, as means over writers."""

    common_rule: float
    """The best predictor that does not know who wrote: the vote of all writers."""
    own_rule: float
    """The best predictor that knows the writer's rule; flipped labels remain."""


class _Draws:
    """Random choices that are the same on every platform and with every NumPy."""

    def __init__(self, *key: str | int) -> None:
        digest = hashlib.sha256(repr(key).encode()).digest()
        # Only the raw words of Philox are frozen; the methods of Generator may change.
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def below(self, limit: int) -> int:
        return int(self._bits.random_raw()) % limit

    def chance(self, probability: float) -> bool:
        return int(self._bits.random_raw()) < probability * 2**64

    def pick(self, items: Sequence[_Item]) -> _Item:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[_Item], count: int) -> list[_Item]:
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]


def writers(count: int, seed: int) -> list[Writer]:
    """Return `count` writers of one community: the same preferences, but different tastes.

    Kinds of rule take turns, so that four writers in a row show all of them.
    """
    community = _Draws("community", seed)
    prefers = PUBLIC_PREFERENCES + tuple(community.pick(pair) for pair in _OPEN_ASPECTS)
    return [
        _writer(
            _Draws("writer", seed, index),
            user=f"writer-{seed}-{index}",
            prefers=prefers,
            setting="evening" if index % 2 else "company",
            strength=STRONG if index // 2 % 2 else MILD,
        )
        for index in range(count)
    ]


def messages(writer: Writer, count: int, split: Split, seed: int) -> list[Message]:
    """Return `count` different messages of one split, labelled by the rule of `writer`.

    None has cues that cancel out, so that the writer is never torn.

    Raises:
        DataError: the split is unknown.
    """
    if split not in ("train", "validation", "test"):
        raise DataError(f"no split {split!r} of the messages: use train, validation or test")
    draws = _Draws("messages", writer.user, split, seed)
    vocabulary = WORDS if split == "test" else _SEEN_WORDS
    labels: dict[str, int] = {}
    while len(labels) < count:
        text = _text(draws, vocabulary)
        if split_of(text) == split and text not in labels and writer.valence(text):
            labels[text] = _label(writer, text, draws)
    return [Message(text=text, label=label, user=writer.user) for text, label in labels.items()]


def split_of(text: str) -> Split:
    """Return the one split in which a text may appear, whoever writes it."""
    if HELD_OUT_WORDS.intersection(_words(text)):
        return "test"
    return "validation" if hashlib.sha256(text.encode()).digest()[0] < 64 else "train"


def ceilings(people: Sequence[Writer], rows: Sequence[Message]) -> Ceilings:
    """Return what the best common rule and the writers' own rules reach on `rows`.

    Raises:
        DataError: there are no rows, or one is by somebody who is not among `people`.
    """
    if not rows:
        raise DataError("ceilings need at least one message")
    own = {writer.user: writer for writer in people}
    common_hits: dict[str, list[bool]] = {}
    own_hits: dict[str, list[bool]] = {}
    for row in rows:
        text, user = row["text"], row["user"]
        if user not in own:
            raise DataError(f"a message is by {user!r}, who is not among the writers given")
        votes = sum(1 if writer.score(text) > 0 else -1 for writer in people)
        common_hits.setdefault(user, []).append((votes > 0) == row["label"])
        own_hits.setdefault(user, []).append((own[user].score(text) > 0) == row["label"])
    return Ceilings(_mean_over_writers(common_hits), _mean_over_writers(own_hits))


def pretraining_text(count: int, seed: int) -> Iterator[str]:
    """Yield `count` texts by writers of whom none is in any federation.

    Six in ten state a persona and let one to four judged messages follow; three in ten only have
    the messages, and there no more than the public preferences counts; one in ten explains a word.
    """
    words = [(word, category) for word, category in _CATEGORY.items() if word != category]
    for index in range(count):
        draws = _Draws("pretraining", seed, index)
        kind = draws.below(10)
        if kind == 0:
            yield "{} means {}.".format(*draws.pick(words))
            continue
        stated = kind > 3
        aspects = draws.sample(_OPEN_ASPECTS, draws.below(len(_OPEN_ASPECTS) + 1) if stated else 0)
        writer = _writer(
            draws,
            user="public",
            prefers=PUBLIC_PREFERENCES + tuple(draws.pick(pair) for pair in aspects),
            setting=draws.pick(("company", "evening")),
            strength=draws.pick((MILD, STRONG)),
        )
        sentences = [writer.persona()] if stated else []
        for _ in range(1 + draws.below(4)):
            text = _text(draws, WORDS)
            word = LABEL_WORDS[_label(writer, text, draws)]
            sentences.append(text + QUESTION.format(word=word))
        yield " ".join(sentences)


def _writer(
    draws: _Draws,
    user: str,
    prefers: tuple[str, ...],
    setting: Literal["company", "evening"],
    strength: float,
) -> Writer:
    loves, hates, loves_if = draws.sample(TOPICS, 3)
    return Writer(user, prefers, loves, hates, loves_if, setting, strength)


def _text(draws: _Draws, vocabulary: Mapping[str, Sequence[str]]) -> str:
    time = draws.pick(vocabulary[draws.pick(("morning", "evening"))])
    companions = draws.pick(("company", "solitude"))
    company = ("with " if companions == "company" else "") + draws.pick(vocabulary[companions])
    clauses = [
        f"at {time} {company} in the {draws.pick(vocabulary['place'])}",
        draws.pick(_TOPIC_PHRASES).format(draws.pick(vocabulary[draws.pick(TOPICS)])),
    ]
    # Two cues cancel out half of the time; the rest leaves as many messages with one as with two.
    for aspect in draws.sample(ASPECTS, draws.pick((1, 2, 2))):
        noun, cue = draws.pick(_CUE_NOUNS[aspect]), draws.pick(vocabulary[draws.pick(aspect)])
        clauses.append(f"the {noun} was {cue}")
    return ", ".join(draws.sample(clauses, len(clauses))) + "."


def _label(writer: Writer, text: str, draws: _Draws) -> int:
    score = writer.score(text)
    liked = score > 0 if score else draws.chance(0.5)
    return int(liked != draws.chance(LABEL_NOISE))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text)


def _categories(text: str) -> set[str]:
    return {_CATEGORY[word] for word in _words(text) if word in _CATEGORY}


def _mean_over_writers(hits: Mapping[str, Sequence[bool]]) -> float:
    return float(np.mean([np.mean(of_one) for of_one in hits.values()]))
