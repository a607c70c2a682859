"""Generated messages from writers who share a common rule and differ in taste.

A message names a time of day, company, a place, a topic and one or two cues ("the soup was tasty").
Its label says whether the writer loved (1) or hated (0) the event. Every cue and topic has a
weight. The sign of the sum of a message's weights decides the label, and a small share of the
labels is flipped. The weights of cues are the same for all writers of a community: the common rule.
The weights of topics are a writer's taste. A writer loves one topic, hates one, loves one only in
company or only in the evening, and is indifferent to two.

A community differs from the public in some aspects, which are drawn from its seed. For example, a
community may prefer dark to bright. A base model is pretrained on text by the public: named
readers, who differ in preferences and tastes, judge messages. From this text, the base model learns
all categories of words, and that people differ. It then expects a community to be like the public.
Only federated training can teach it the differences.

Every text belongs to exactly one split, regardless of its writer. The last third of the words of
every category appears only in test messages. The text for pretraining uses all words.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypedDict, TypeVar

import numpy as np

from samara.shared.errors import DataError

EMBEDDED_DATA = "messages"
"""Value of ``data.path`` for generated messages; the task that reads them has the same name."""
SplitName = Literal["train", "validation", "test"]
_Item = TypeVar("_Item")

VERDICT: Final = " {who} {word} it."
QUESTION: Final = VERDICT.replace("{who}", "i")
LABEL_WORDS: Final = ("hated", "loved")

LABEL_NOISE: Final = 0.04
MILD, STRONG = 1.5, 2.5
"""Weights of a topic for a mild and a strong taste. A cue has the weight 1."""
TURNED_ASPECTS: Final = 4
"""Number of aspects in which a community differs from the public."""
READERS: Final = 256
"""Number of named readers."""
READER_TURNS: Final = 0.4
"""Probability that a reader differs from the public in an aspect about which readers disagree."""
VERDICTS: Final = 8
"""Number of readers who judge a message."""

_TOPICS: Final = {
    "rain": "rain drizzle showers sleet downpour hail cloudburst rainfall mizzle",
    "crowds": "crowds queues throngs hordes mobs swarms multitudes masses droves",
    "spice": "chilli pepper curry wasabi ginger paprika cayenne jalapeno turmeric",
    "cats": "cats kittens tabbies felines tomcats mousers siamese persians moggies",
    "music": "music songs jazz drums guitars choirs violins ballads opera",
}
_CUES: Final = {
    "cosy": "cosy clean tidy neat spotless snug immaculate pristine gleaming",
    "broken": "broken dirty filthy shabby cracked stained grimy dilapidated tattered",
    "tasty": "tasty delicious savoury juicy rich yummy scrumptious delectable succulent",
    "bland": "bland stale tasteless soggy burnt rancid insipid unappetising rotten",
    "kind": "kind friendly polite gentle courteous gracious cordial considerate affable",
    "rude": "rude grumpy hostile surly curt arrogant snide impolite churlish",
    "quick": "quick prompt swift punctual speedy brisk timely rapid expeditious",
    "late": "late slow delayed sluggish overdue tardy belated unpunctual dawdling",
    "warm": "warm hot heated toasty steaming boiling lukewarm piping scalding",
    "cold": "cold chilly icy frosty frozen cool chilled freezing wintry",
    "soft": "soft fluffy squishy plush padded cushioned downy velvety springy",
    "hard": "hard firm stiff rigid solid tough unyielding stony inflexible",
    "fancy": "fancy ornate lavish elaborate decorated opulent sumptuous gilded embellished",
    "plain": "plain simple bare modest basic unadorned austere spartan undecorated",
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
    ("quick", "late"): ("bus", "train", "service", "order"),
    ("warm", "cold"): ("tea", "bath", "milk", "coffee"),
    ("soft", "hard"): ("bench", "pillow", "bed", "cushion"),
    ("fancy", "plain"): ("dress", "carpet", "door", "vase"),
    ("colourful", "pale"): ("poster", "curtain", "scarf", "wall"),
    ("bright", "dark"): ("corner", "window", "stage", "path"),
    ("quiet", "loud"): ("street", "radio", "engine", "fountain"),
    ("large", "small"): ("portion", "cup", "plate", "bag"),
    ("modern", "ancient"): ("building", "clock", "chair", "bridge"),
}
_SYLLABLES: Final = "ba ce di fo gu ha je ki lo mu na pe ri so tu va"
_TOPIC_PHRASES: Final = ("plenty of {}", "more {}", "{} again", "a day of {}")

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    category: tuple(words.split()) for category, words in (_TOPICS | _CUES | _SETTINGS).items()
}
"""Words of every category. The last third of the words occurs only in test messages."""

_TRAINING_WORDS: Final = {
    category: words[: len(words) * 2 // 3] for category, words in WORDS.items()
}
_CATEGORY: Final = {word: category for category, words in WORDS.items() for word in words}

HELD_OUT_WORDS: Final = frozenset(_CATEGORY).difference(*_TRAINING_WORDS.values())
TOPICS: Final = tuple(_TOPICS)
ASPECTS: Final = tuple(_CUE_NOUNS)
"""Pairs of opposite cue categories. The public prefers the first of each pair."""
PUBLIC_PREFERENCES: Final = tuple(preferred for preferred, _ in ASPECTS)
_DEBATED_ASPECTS: Final = ASPECTS[4:]
_OPPOSITE: Final = {one: other for pair in ASPECTS for one, other in (pair, pair[::-1])}


class Message(TypedDict):
    """A labelled example in the form of the task data files."""

    text: str
    label: int
    user: str


@dataclass(frozen=True)
class Writer:
    """A writer's rule: preferred cues, and the weights of topics."""

    user: str
    prefers: tuple[str, ...]
    loves: str
    hates: str
    loves_if: str
    setting: Literal["company", "evening"]
    strength: float

    def valence(self, text: str) -> int:
        """Return the sum of the weights of a text's cue words, without the weight of its topic."""
        present = _categories(text)
        return sum((cue in present) - (_OPPOSITE[cue] in present) for cue in self.prefers)

    def score(self, text: str) -> float:
        """Return the sum of the weights of a text's cue words and topic; negative means dislike."""
        present = _categories(text)
        taste = (self.loves in present) - (self.hates in present)
        taste += {self.loves_if, self.setting} <= present
        return self.valence(text) + self.strength * taste


class Ceilings(NamedTuple):
    """Highest expected accuracies of a model, as means over writers."""

    common_rule: float
    """Accuracy of a majority vote of all writers' rules, the best rule common to all writers."""
    own_rule: float
    """Accuracy of the writer's own rule, which is wrong only for flipped labels."""


class Draws:
    """A source of random choices, identical on every platform and NumPy version."""

    def __init__(self, *key: str | int) -> None:
        digest = hashlib.sha256(repr(key).encode()).digest()
        # NumPy keeps only Philox's raw words stable; Generator's methods may change.
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def below(self, limit: int) -> int:
        """Return a number from 0 to limit − 1."""
        return int(self._bits.random_raw()) % limit

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return int(self._bits.random_raw()) < probability * 2**64

    def pick(self, items: Sequence[_Item]) -> _Item:
        """Return a random item."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """Return `count` distinct random items in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(count)]


def writers(count: int, seed: int) -> list[Writer]:
    """Return `count` writers of one community, with equal preferences and different tastes.

    There are four kinds of taste, and any four consecutive writers have all four.
    """
    prefers = _preferences(Draws("community", seed), TURNED_ASPECTS)
    return [
        _writer(
            Draws("writer", seed, index),
            user=f"writer-{seed}-{index}",
            prefers=prefers,
            setting="evening" if index % 2 else "company",
            strength=STRONG if index // 2 % 2 else MILD,
        )
        for index in range(count)
    ]


def messages(writer: Writer, count: int, split: SplitName, seed: int) -> list[Message]:
    """Return `count` different messages of one split, labelled by the rule of `writer`.

    The weights of a message's cues never add up to zero.

    Raises:
        DataError: if the split is unknown.
    """
    if split not in ("train", "validation", "test"):
        raise DataError(
            f"generated messages have no split {split!r}; use train, validation or test"
        )
    labelled = _labelled_texts(writer, count, split, seed)
    return [Message(text=text, label=label, user=writer.user) for text, label in labelled]


@lru_cache(maxsize=256)  # a simulation reads the same messages several times
def _labelled_texts(
    writer: Writer, count: int, split: SplitName, seed: int
) -> tuple[tuple[str, int], ...]:
    draws = Draws("messages", writer.user, split, seed)
    vocabulary = WORDS if split == "test" else _TRAINING_WORDS
    labels: dict[str, int] = {}
    for text, label in _judged_texts(writer, draws, vocabulary):
        if len(labels) >= count:
            break
        if split_of(text) == split:
            labels.setdefault(text, label)
    return tuple(labels.items())


def split_of(text: str) -> SplitName:
    """Return the only split in which a text may appear, the same for all writers."""
    if HELD_OUT_WORDS.intersection(_words(text)):
        return "test"
    return "validation" if hashlib.sha256(text.encode()).digest()[0] < 64 else "train"


def ceilings(people: Sequence[Writer], rows: Sequence[Message]) -> Ceilings:
    """Return the accuracies of the best common rule and of the writers' rules on messages.

    Raises:
        DataError: if there are no rows, or a row's writer is not among `people`.
    """
    if not rows:
        raise DataError("there are no messages from which to compute the best accuracies")
    writer_of = {writer.user: writer for writer in people}
    common_hits: dict[str, list[bool]] = {}
    own_hits: dict[str, list[bool]] = {}
    for row in rows:
        text, user = row["text"], row["user"]
        if user not in writer_of:
            raise DataError(f"a message is by {user!r}, who is not among the writers given")
        votes = sum(1 if writer.score(text) > 0 else -1 for writer in people)
        common_hits.setdefault(user, []).append((votes > 0) == row["label"])
        own_hits.setdefault(user, []).append((writer_of[user].score(text) > 0) == row["label"])
    return Ceilings(_mean_over_writers(common_hits), _mean_over_writers(own_hits))


def pretraining_text(count: int, seed: int) -> Iterator[str]:
    """Yield `count` generated texts for pretraining a base model.

    Each text is a message, followed by readers' verdicts on it in random order. Named readers are
    the same people in all texts. The reader "i" is a new random person in each text, with the
    public's preferences. A reader for whom the message's cues cancel out gives no verdict.
    """
    readers = [_reader(seed, index) for index in range(READERS)]
    for index in range(count):
        draws = Draws("pretraining", seed, index)
        anybody = _writer(
            draws,
            user="i",
            prefers=PUBLIC_PREFERENCES,
            setting=draws.pick(("company", "evening")),
            strength=draws.pick((MILD, STRONG)),
        )
        judges = draws.sample([anybody, *draws.sample(readers, VERDICTS - 1)], VERDICTS)
        text = _text(draws, WORDS)
        yield text + "".join(
            VERDICT.format(who=judge.user, word=LABEL_WORDS[_label(judge, text, draws)])
            for judge in judges
            if judge.valence(text)
        )


def _reader(seed: int, index: int) -> Writer:
    draws = Draws("reader", seed, index)
    syllables = _SYLLABLES.split()
    return _writer(
        draws,
        user="".join(syllables[digit] for digit in divmod(index, len(syllables))),
        prefers=tuple(
            pair[pair in _DEBATED_ASPECTS and draws.chance(READER_TURNS)] for pair in ASPECTS
        ),
        setting=draws.pick(("company", "evening")),
        strength=draws.pick((MILD, STRONG)),
    )


def _preferences(draws: Draws, turned: int) -> tuple[str, ...]:
    against = draws.sample(_DEBATED_ASPECTS, turned)
    return tuple(pair[pair in against] for pair in ASPECTS)


def _writer(
    draws: Draws,
    user: str,
    prefers: tuple[str, ...],
    setting: Literal["company", "evening"],
    strength: float,
) -> Writer:
    loves, hates, loves_if = draws.sample(TOPICS, 3)
    return Writer(user, prefers, loves, hates, loves_if, setting, strength)


def _text(draws: Draws, vocabulary: Mapping[str, Sequence[str]]) -> str:
    time = draws.pick(vocabulary[draws.pick(("morning", "evening"))])
    companions = draws.pick(("company", "solitude"))
    company = ("with " if companions == "company" else "") + draws.pick(vocabulary[companions])
    clauses = [
        f"at {time} {company} in the {draws.pick(vocabulary['place'])}",
        draws.pick(_TOPIC_PHRASES).format(draws.pick(vocabulary[draws.pick(TOPICS)])),
    ]
    for aspect in draws.sample(ASPECTS, 1 + draws.below(2)):
        noun, cue = draws.pick(_CUE_NOUNS[aspect]), draws.pick(vocabulary[draws.pick(aspect)])
        clauses.append(f"the {noun} was {cue}")
    return ", ".join(draws.sample(clauses, len(clauses))) + "."


def _judged_texts(
    writer: Writer, draws: Draws, vocabulary: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, int]]:
    while True:
        text = _text(draws, vocabulary)
        if writer.valence(text):
            yield text, _label(writer, text, draws)


def _label(writer: Writer, text: str, draws: Draws) -> int:
    return int((writer.score(text) > 0) != draws.chance(LABEL_NOISE))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text)


def _categories(text: str) -> set[str]:
    return {_CATEGORY[word] for word in _words(text) if word in _CATEGORY}


def _mean_over_writers(hits: Mapping[str, Sequence[bool]]) -> float:
    return float(np.mean([np.mean(writer_hits) for writer_hits in hits.values()]))
