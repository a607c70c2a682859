"""Generated messages in the styles of their writers, and an exact check of an answer's style.

A prompt is the beginning of a message, with a place, a time and company. The answer continues it in
three parts. A writer's style decides between two forms of each part:

- word choice: an everyday or a rare word, "the room was clean" or "the room was immaculate";
- ending: "more jazz" or "jazz again", with any topic;
- form of address: the name of the reader whom the message addresses.

Prompt and style determine all of the answer except the topic, so every part is right or wrong. Any
eight consecutive writers have all eight styles. A model that does not know the writer therefore has
at most half of all parts right, and at most an eighth of all answers completely right.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, TypedDict

from samara.shared.tasks.messages import WORDS, Draws, SplitName

_WORD_CHOICES: Final = (
    {"room": "clean", "soup": "tasty", "waiter": "kind"},
    {"room": "immaculate", "soup": "scrumptious", "waiter": "gracious"},
)
_ENDINGS: Final = ("more {}", "{} again")
_ADDRESSES: Final = ("dina", "riva")
_TOPICS: Final = ("rain", "crowds", "spice", "cats", "music")
STYLE_PARTS: Final = ("word choice", "ending", "form of address")
"""Parts of a style, in the order in which they occur in an answer."""


class Style(NamedTuple):
    """A writer's style: which of the two forms, 0 or 1, each part of an answer has."""

    word_choice: int
    ending: int
    address: int


class StyledMessage(TypedDict):
    """A generated message in the form of a data file's row."""

    prompt: str
    response: str
    user: str


def style_of(writer: int) -> Style:
    """Return a writer's style by index. Eight consecutive writers have different styles."""
    return Style(writer % 2, writer // 2 % 2, writer // 4 % 2)


def styled_messages(writer: int, count: int, split: SplitName, seed: int) -> list[StyledMessage]:
    """Return distinct messages of a writer for one split. No prompt occurs in two splits.

    Args:
        writer: index of the writer.
        count: number of messages.
        split: split of the messages.
        seed: seed of all writers' messages.
    """
    draws = Draws("style", seed, writer, split)
    found = dict[str, str]()
    while len(found) < count:
        prompt, noun = _prompt(draws)
        if _split_of(prompt) == split:
            found.setdefault(prompt, _response(draws, style_of(writer), noun))
    user = f"writer-{seed}-{writer}"
    return [StyledMessage(prompt=p, response=r, user=user) for p, r in found.items()]


def parts_in_style(writer: int, prompt: str, answer: str) -> tuple[bool, bool, bool]:
    """Return for each part whether an answer to a prompt has the writer's style.

    Args:
        writer: index of the writer.
        prompt: beginning of a message.
        answer: continuation by a model.
    """
    style = style_of(writer)
    word, ending, address, *rest = [*(part.strip() for part in answer.split(",")), "", "", ""]
    noun = prompt.split()[-2] if len(prompt.split()) > 1 else ""
    form = _ENDINGS[style.ending].format("").strip()
    words = ending.split()
    has_form = len(words) == 2 and words[style.ending == 0] in _TOPIC_WORDS and form in words
    return (
        word == _WORD_CHOICES[style.word_choice].get(noun),
        has_form and words.index(form) == style.ending,
        address == _ADDRESSES[style.address] and not any(rest),
    )


def style_ceilings(writers: int) -> tuple[float, float]:
    """Return the largest possible shares of answers in the right style.

    The first is for a model that does not know the writer and always writes in the most common
    style. The second is for a model that knows the writer.
    """
    commonest = Counter(map(style_of, range(writers))).most_common(1)[0][1]
    return commonest / writers, 1.0


def _prompt(draws: Draws) -> tuple[str, str]:
    time = draws.pick(WORDS[draws.pick(("morning", "evening"))])
    company, place = draws.pick(WORDS["company"]), draws.pick(WORDS["place"])
    noun = draws.pick(tuple(_WORD_CHOICES[0]))
    return f"at {time} with {company} in the {place}, the {noun} was", noun


def _response(draws: Draws, style: Style, noun: str) -> str:
    topic = draws.pick(WORDS[draws.pick(_TOPICS)])
    ending = _ENDINGS[style.ending].format(topic)
    return f"{_WORD_CHOICES[style.word_choice][noun]}, {ending}, {_ADDRESSES[style.address]}"


def _split_of(prompt: str) -> SplitName:
    """Return the only split in which a prompt may occur, the same for all writers."""
    draw = Draws("split of style", prompt).below(10)
    return "test" if draw < 2 else "validation" if draw < 3 else "train"


_TOPIC_WORDS: Final = frozenset(word for topic in _TOPICS for word in WORDS[topic])


def describe_parts(answers: Sequence[tuple[int, str, str]]) -> dict[str, float]:
    """Return the share of answers in the writer's style, by part and for the whole style.

    Args:
        answers: triples of writer, prompt and answer.
    """
    found = [parts_in_style(*one) for one in answers]
    parts = {
        name: sum(own[index] for own in found) / len(found)
        for index, name in enumerate(STYLE_PARTS)
    }
    return parts | {"whole style": sum(map(all, found)) / len(found)}
