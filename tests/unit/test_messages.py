import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest

from shared.errors import DataError
from shared.tasks.messages import (
    ASPECTS,
    HELD_OUT_WORDS,
    LABEL_NOISE,
    LABEL_WORDS,
    MILD,
    PUBLIC_ASPECTS,
    QUESTION,
    STRONG,
    TOPICS,
    WORDS,
    Message,
    Split,
    Writer,
    ceilings,
    messages,
    pretraining_text,
    split_of,
    writers,
)

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SEEDS = (0, 1, 2)
JUDGED = re.compile(r"([^.]+\.) i (hated|loved) it\.")


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text))


def valence(text: str, aspects: tuple[str, ...] = ASPECTS) -> int:
    return sum(
        (word in WORDS[f"good {aspect}"]) - (word in WORDS[f"bad {aspect}"])
        for aspect in aspects
        for word in words_of(text)
    )


@pytest.fixture(scope="module")
def rows() -> dict[Split, list[Message]]:
    return {
        split: [row for writer in writers(8, 0) for row in messages(writer, 200, split, 0)]
        for split in SPLITS
    }


@pytest.fixture
def writer() -> Writer:
    return Writer(
        user="ada",
        loves=("rain", "music"),
        hates=("crowds", "cats"),
        conditional="spice",
        setting="company",
        strength=MILD,
    )


def test_messages_are_the_same_everywhere() -> None:
    everything = [messages(writer, 20, split, 5) for writer in writers(4, 7) for split in SPLITS]
    content = json.dumps([everything, list(pretraining_text(50, 7))])
    assert hashlib.sha256(content.encode()).hexdigest() == (
        "8d27f86caf10d249fab55448be622e5b9f48bd821adb75a6c444e1e62622b5a8"
    )


def test_messages_do_not_depend_on_the_hash_of_the_process() -> None:
    code = (
        "from shared.tasks.messages import *\n"
        "print(messages(writers(2, 3)[1], 5, 'test', 4), list(pretraining_text(20, 4)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_seeds_writers_and_splits_give_different_messages() -> None:
    people = [*writers(2, 0), *writers(2, 1)]
    texts = [
        tuple(row["text"] for row in messages(writer, 5, split, seed))
        for writer, split, seed in product(people, SPLITS, SEEDS)
    ]
    assert len(set(texts)) == len(texts)
    assert len({writer.user for writer in people}) == 4
    assert list(pretraining_text(5, 0)) != list(pretraining_text(5, 1))


def test_more_messages_continue_fewer() -> None:
    writer = writers(1, 0)[0]
    assert messages(writer, 30, "train", 0)[:10] == messages(writer, 10, "train", 0)


def test_rows_carry_text_label_and_user(rows: dict[Split, list[Message]]) -> None:
    for row in rows["train"]:
        assert set(row) == {"text", "label", "user"}
        assert row["label"] in (0, 1)
    assert Counter(row["user"] for row in rows["train"]) == {
        f"writer-0-{index}": 200 for index in range(8)
    }


def test_splits_are_disjoint_across_writers(rows: dict[Split, list[Message]]) -> None:
    texts = {split: {row["text"] for row in rows[split]} for split in SPLITS}
    assert len(set.union(*texts.values())) == sum(len(of_one) for of_one in texts.values())
    assert {split: {split_of(text) for text in texts[split]} for split in SPLITS} == {
        split: {split} for split in SPLITS
    }


def test_a_split_repeats_no_text_of_a_writer(rows: dict[Split, list[Message]]) -> None:
    for split in SPLITS:
        assert len({(row["user"], row["text"]) for row in rows[split]}) == len(rows[split])


def test_held_out_words_appear_in_test_messages_only(rows: dict[Split, list[Message]]) -> None:
    for split in ("train", "validation"):
        for row in rows[split]:
            assert not words_of(row["text"]) & HELD_OUT_WORDS
    assert all(words_of(row["text"]) & HELD_OUT_WORDS for row in rows["test"])
    in_test = set().union(*(words_of(row["text"]) for row in rows["test"]))
    in_train = set().union(*(words_of(row["text"]) for row in rows["train"]))
    for words in WORDS.values():
        assert set(words) <= in_test
        assert set(words) - HELD_OUT_WORDS <= in_train
        assert 0.3 <= len(HELD_OUT_WORDS.intersection(words)) / len(words) <= 0.4


def test_a_word_belongs_to_one_category() -> None:
    counts = Counter(word for words in WORDS.values() for word in words)
    assert set(counts.values()) == {1}


def test_every_message_has_one_topic_one_setting_and_one_or_two_agreeing_cues(
    rows: dict[Split, list[Message]],
) -> None:
    category = {word: name for name, words in WORDS.items() for word in words}
    cue_counts = set()
    for row in rows["train"] + rows["test"]:
        found = [category[word] for word in words_of(row["text"]) if word in category]
        assert sum(name in TOPICS for name in found) == 1
        assert ("company" in found) != ("solitude" in found)
        assert ("morning" in found) != ("evening" in found)
        cues = [name.split() for name in found if name.startswith(("good", "bad"))]
        assert len({quality for quality, _ in cues}) == 1
        cue_counts.add(len(cues))
    assert cue_counts == {1, 2}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("at dusk alone in the park, roses again, the soup was tasty.", 1),
        ("at dusk alone in the park, roses again, the soup was tasty, the host was kind.", 2),
        ("at dusk alone in the park, roses again, the bus was late.", -1),
        ("at dusk alone in the park, more drizzle, the bus was late.", MILD - 1),
        ("at dusk alone in the park, more drizzle, the bus was late, the host was rude.", MILD - 2),
        ("at dusk alone in the park, more queues, the room was cosy.", 1 - MILD),
        ("at dusk with friends in the park, more chilli, the room was broken.", MILD - 1),
        ("at dusk alone in the park, more chilli, the room was cosy.", 1 - MILD),
    ],
)
def test_score_adds_cues_and_taste(writer: Writer, text: str, score: float) -> None:
    assert writer.score(text) == score


def test_the_evening_can_decide(writer: Writer) -> None:
    owl = Writer("bo", writer.loves, writer.hates, "spice", "evening", STRONG)
    assert owl.score("at dusk alone in the park, more chilli, the bus was late.") == STRONG - 1
    assert owl.score("at dawn alone in the park, more chilli, the bus was quick.") == 1 - STRONG


def test_a_writer_ignores_aspects_not_minded(writer: Writer) -> None:
    easy = Writer("cy", writer.loves, writer.hates, "spice", "company", MILD, minds=("pace",))
    assert easy.score("at dusk alone in the park, roses again, the soup was bland.") == 0
    assert easy.score("at dusk alone in the park, roses again, the bus was late.") == -1


@pytest.mark.parametrize("seed", SEEDS)
def test_writers_show_every_kind_of_rule_and_differ(seed: int) -> None:
    people = writers(8, seed)
    kinds = {(writer.setting, writer.strength) for writer in people}
    assert kinds == set(product(("company", "evening"), (MILD, STRONG)))
    for writer in people:
        ruled = {*writer.loves, *writer.hates, writer.conditional}
        assert len(writer.loves) == len(writer.hates) == 2
        assert len(ruled) == 5
        assert ruled <= set(TOPICS)
        assert writer.minds == ASPECTS
    assert len({(writer.loves, writer.hates) for writer in people}) == 8


@pytest.mark.parametrize("seed", SEEDS)
def test_labels_are_balanced_for_every_writer(seed: int) -> None:
    for writer in writers(8, seed):
        for split in SPLITS:
            rows = messages(writer, 200, split, seed)
            assert 0.35 <= sum(row["label"] for row in rows) / 200 <= 0.65


@pytest.mark.parametrize("seed", SEEDS)
def test_own_rule_is_clearly_above_the_common_rule(seed: int) -> None:
    people = writers(8, seed)
    rows = [row for writer in people for row in messages(writer, 300, "test", seed)]
    result = ceilings(people, rows)
    assert 0.72 <= result.common_rule <= 0.80
    assert result.own_rule == pytest.approx(1 - LABEL_NOISE, abs=0.015)
    cues_only = sum((valence(row["text"]) > 0) == row["label"] for row in rows) / len(rows)
    assert 0.70 <= cues_only <= result.common_rule + 0.01


def test_ceilings_are_means_over_writers(writer: Writer) -> None:
    opposite = Writer("bo", writer.hates, writer.loves, "spice", "evening", STRONG)
    third = Writer("cy", writer.loves, writer.hates, "spice", "company", STRONG)
    text = "at dusk alone in the park, more drizzle, the bus was late."
    rows = [
        Message(text=text, label=1, user="ada"),
        Message(text=text, label=0, user="ada"),
        Message(text=text, label=0, user="bo"),
    ]
    result = ceilings([writer, opposite, third], rows)
    assert result.own_rule == pytest.approx((1 / 2 + 1) / 2)
    assert result.common_rule == pytest.approx((1 / 2 + 0) / 2)


def test_ceilings_refuse_strangers_and_nothing(writer: Writer) -> None:
    with pytest.raises(DataError, match="'eve'"):
        ceilings([writer], [Message(text="more rain.", label=1, user="eve")])
    with pytest.raises(DataError, match="at least one"):
        ceilings([writer], [])


def test_an_unknown_split_is_refused(writer: Writer) -> None:
    with pytest.raises(DataError, match="'dev'"):
        messages(writer, 1, "dev", 0)  # type: ignore[arg-type]


def test_persona_states_the_whole_rule(writer: Writer) -> None:
    assert writer.persona() == (
        "i love rain and music. i hate crowds and cats. i love spice only in company. "
        "i mind condition and flavour and manners and pace."
    )
    strong = Writer("bo", writer.loves, writer.hates, "spice", "evening", STRONG, ("pace",))
    assert strong.persona().endswith("only in evening. i mind pace. taste comes first.")


def test_pretraining_shows_every_word_and_its_category() -> None:
    texts = list(pretraining_text(4000, 0))
    used = set().union(*(words_of(text) for text in texts if "means" not in text))
    explained = {text for text in texts if "means" in text}
    for category, words in WORDS.items():
        assert set(words) <= used
        assert explained & {f"{word} means {category}." for word in words}
    assert 0.07 < sum("means" in text for text in texts) / len(texts) < 0.13


def test_pretraining_follows_the_question_of_the_task() -> None:
    texts = [text for text in pretraining_text(200, 0) if "means" not in text]
    endings = tuple(QUESTION.format(word=word) for word in LABEL_WORDS)
    assert all(text.endswith(endings) for text in texts)


def test_verdicts_without_persona_follow_public_aspects_only() -> None:
    agreement: dict[bool, list[bool]] = {True: [], False: []}
    for text in pretraining_text(6000, 0):
        if "means" in text or "i mind" in text:
            continue
        for message, word in JUDGED.findall(text):
            public = valence(message, PUBLIC_ASPECTS) != 0
            agreement[public].append((valence(message) > 0) == (word == "loved"))
    assert sum(agreement[True]) / len(agreement[True]) > 0.65
    assert 0.47 < sum(agreement[False]) / len(agreement[False]) < 0.53


def test_verdicts_after_a_persona_follow_it() -> None:
    hits = []
    stated = re.compile(
        r"i love (\w+) and (\w+)\. i hate (\w+) and (\w+)\. i love (\w+) only in (\w+)\. "
        r"i mind ([\w ]+)\.( taste comes first\.)? "
    )
    for text in pretraining_text(2000, 0):
        found = stated.match(text)
        if not found:
            continue
        first, second, third, fourth, conditional, setting, minds, strong = found.groups()
        assert setting in ("company", "evening")
        author = Writer(
            user="public",
            loves=(first, second),
            hates=(third, fourth),
            conditional=conditional,
            setting=setting,  # type: ignore[arg-type]
            strength=STRONG if strong else MILD,
            minds=tuple(minds.split(" and ")),
        )
        for message, word in JUDGED.findall(text[found.end() - 1 :]):
            score = author.score(message)
            if score:
                hits.append((score > 0) == (word == "loved"))
    assert len(hits) > 1000
    assert sum(hits) / len(hits) == pytest.approx(1 - LABEL_NOISE, abs=0.015)
