"""Messages in the styles of their writers, which can be checked exactly.

A prompt is the beginning of a message and says where, when and with whom it was. Every writer goes
on with a word for what the prompt ends with, with a topic, and with a name, each in one of two
ways:

- word choice: everyday words or choice ones, "the room was clean" or "the room was immaculate";
- ending: "more jazz" or "jazz again", of any topic;
- form of address: the reader that the message is told to.

The answer is fixed by the prompt and the style, but for the topic, so that every part of it is
right or wrong. Eight writers in a row have all eight styles: no model that is not given the writer
can be in more than half of the parts' styles, or in an eighth of the whole ones.
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
"""The parts of a style, in the order in which an answer shows them."""


class Style(NamedTuple):
    """The ways in which a writer writes: 0 or 1 for each part."""

    word_choice: int
    ending: int
    address: int


class StyledMessage(TypedDict):
    """A message in the form of the task data files."""

    prompt: str
    response: str
    user: str


def style_of(writer: int) -> Style:
    """Return the style of a writer, given its index; eight writers in a row differ."""
    return Style(writer % 2, writer // 2 % 2, writer // 4 % 2)


def styled_messages(writer: int, count: int, split: SplitName, seed: int) -> list[StyledMessage]:
    """Return different messages of a writer in one split; no prompt is in two splits.

    Args:
        writer: index of the writer.
        count: number of messages.
        split: split of the messages.
        seed: seed of all writers' messages.
    """
    draws, found = Draws("style", seed, writer, split), dict[str, str]()
    while len(found) < count:
        prompt, noun = _prompt(draws)
        if _split_of(prompt) == split:
            found.setdefault(prompt, _response(draws, style_of(writer), noun))
    user = f"writer-{seed}-{writer}"
    return [StyledMessage(prompt=p, response=r, user=user) for p, r in found.items()]


def parts_in_style(writer: int, prompt: str, answer: str) -> tuple[bool, bool, bool]:
    """Return for each part whether an answer to a prompt is in a writer's style.

    Args:
        writer: index of the writer.
        prompt: beginning of a message.
        answer: how a model goes on.
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
    """Return the shares of whole styles that a model can reach: not given the writer, and given it.

    The best common model always writes in the commonest style.
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
    """Return the one split that a prompt may be in, whoever writes it."""
    draw = Draws("split of style", prompt).below(10)
    return "test" if draw < 2 else "validation" if draw < 3 else "train"


_TOPIC_WORDS: Final = frozenset(word for topic in _TOPICS for word in WORDS[topic])


def describe_parts(answers: Sequence[tuple[int, str, str]]) -> dict[str, float]:
    """Return the share of answers in their writers' styles: of each part, and of all parts at once.

    Args:
        answers: writer, prompt and answer of each.
    """
    found = [parts_in_style(*one) for one in answers]
    parts = {
        name: sum(own[index] for own in found) / len(found)
        for index, name in enumerate(STYLE_PARTS)
    }
    return parts | {"whole style": sum(map(all, found)) / len(found)}
