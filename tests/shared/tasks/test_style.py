"""Generated styles: every message is in the style of its writer, and of no other writer."""

from hypothesis import given
from hypothesis import strategies as st

from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.embedded import STYLED_PER_WRITER, embedded_examples
from samara.shared.tasks.messages import WORDS
from samara.shared.tasks.style import (
    describe_parts,
    parts_in_style,
    style_ceilings,
    style_of,
    styled_messages,
)

WRITERS = range(8)


def test_eight_writers_in_a_row_differ() -> None:
    assert len(set(map(style_of, range(3, 11)))) == 8
    assert style_ceilings(8) == (1 / 8, 1.0)
    assert style_ceilings(9) == (2 / 9, 1.0)


def test_a_message_is_in_the_style_of_its_writer_alone() -> None:
    for writer in WRITERS:
        for message in styled_messages(writer, 10, "test", 3):
            prompt, response = message["prompt"], message["response"]
            whole = [all(parts_in_style(other, prompt, response)) for other in WRITERS]
            assert whole == [other == writer for other in WRITERS]
            for other in WRITERS:
                common = [
                    one == two for one, two in zip(style_of(writer), style_of(other), strict=True)
                ]
                assert list(parts_in_style(other, prompt, response)) == common


def test_no_prompt_is_in_two_splits_and_the_seed_decides() -> None:
    prompts = {
        split: {
            message["prompt"]
            for writer in WRITERS
            for message in styled_messages(writer, 20, split, 0)
        }
        for split in ("train", "validation", "test")
    }
    assert not prompts["train"] & prompts["test"]
    assert not prompts["validation"] & (prompts["train"] | prompts["test"])
    assert styled_messages(1, 5, "train", 0) == styled_messages(1, 5, "train", 0)
    assert styled_messages(1, 5, "train", 0) != styled_messages(1, 5, "train", 1)


@given(st.text(), st.lists(st.sampled_from(["clean", ",", "more", "again", "jazz", "riva"])))
def test_any_text_has_some_parts_of_a_style_or_none(prompt: str, words: list[str]) -> None:
    for answer in (prompt, " ".join(words)):
        assert len(parts_in_style(5, prompt, answer)) == 3


def test_what_follows_or_is_missing_is_not_in_style() -> None:
    prompt = "at dawn with friends in the park, the soup was"
    assert parts_in_style(0, prompt, "tasty , more rain, dina") == (True, True, True)
    assert parts_in_style(0, prompt, "tasty, more rain, dina, riva") == (True, True, False)
    assert parts_in_style(0, prompt, "tasty, rain more, dina") == (True, False, True)
    assert parts_in_style(0, prompt, "clean, more soup") == (False, False, False)
    assert parts_in_style(2, prompt, "tasty, rain again, dina") == (True, True, True)
    assert parts_in_style(2, prompt, "tasty, again rain, dina") == (True, False, True)
    shares = describe_parts([(0, prompt, "tasty, more rain, riva"), (0, prompt, "tasty")])
    assert list(shares.values()) == [1.0, 0.5, 0.0, 0.0]


def test_the_task_reads_the_messages_of_each_writer() -> None:
    examples = embedded_examples(load_task("style"), 3, 0)
    assert len(examples) == 3 * sum(STYLED_PER_WRITER.values())
    assert {example.user for example in examples} == {f"writer-0-{index}" for index in range(3)}
    known = {word for words in WORDS.values() for word in words}
    assert {"clean", "immaculate", "tasty", "scrumptious", "kind", "gracious"} <= known
