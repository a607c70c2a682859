import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from samara.shared.errors import DataError
from samara.shared.tasks.messages import (
    ASPECTS,
    HELD_OUT_WORDS,
    LABEL_NOISE,
    LABEL_WORDS,
    MILD,
    PUBLIC_PREFERENCES,
    QUESTION,
    READERS,
    STRONG,
    TOPICS,
    TURNED_ASPECTS,
    VERDICTS,
    WORDS,
    Message,
    SplitName,
    Writer,
    ceilings,
    messages,
    pretraining_text,
    split_of,
    writers,
)

SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
SEEDS = (0, 1, 2)
VERDICTS_IN = re.compile(r" (\w+) (hated|loved) it\.")


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text))


def public_valence(text: str) -> int:
    words = words_of(text)
    return sum(
        len(words.intersection(WORDS[liked])) - len(words.intersection(WORDS[disliked]))
        for liked, disliked in ASPECTS
    )


@pytest.fixture(scope="module")
def rows() -> dict[SplitName, list[Message]]:
    return {
        split: [row for writer in writers(8, 0) for row in messages(writer, 200, split, 0)]
        for split in SPLITS
    }


@pytest.fixture
def writer() -> Writer:
    return Writer(
        user="ada",
        prefers=PUBLIC_PREFERENCES,
        loves="rain",
        hates="crowds",
        loves_if="spice",
        setting="company",
        strength=MILD,
    )


def test_public_preferences_are_one_side_of_every_aspect() -> None:
    assert PUBLIC_PREFERENCES[:4] == ("cosy", "tasty", "kind", "quick")
    assert all(cue in pair for cue, pair in zip(PUBLIC_PREFERENCES, ASPECTS, strict=True))


def test_messages_are_the_same_everywhere() -> None:
    everything = [messages(writer, 20, split, 5) for writer in writers(4, 7) for split in SPLITS]
    content = json.dumps([everything, list(pretraining_text(50, 7))])
    assert hashlib.sha256(content.encode()).hexdigest() == (
        "d14df58c069cd912da738cc39e9e4b448651fe12c273f2180d2e31c5a1500aef"
    )


def test_messages_do_not_depend_on_the_hash_of_the_process() -> None:
    code = (
        "from samara.shared.tasks.messages import *\n"
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


def test_rows_carry_text_label_and_user(rows: dict[SplitName, list[Message]]) -> None:
    for row in rows["train"]:
        assert set(row) == {"text", "label", "user"}
        assert row["label"] in (0, 1)
    assert Counter(row["user"] for row in rows["train"]) == {
        f"writer-0-{index}": 200 for index in range(8)
    }


def test_splits_are_disjoint_across_writers(rows: dict[SplitName, list[Message]]) -> None:
    texts = {split: {row["text"] for row in rows[split]} for split in SPLITS}
    assert len(set.union(*texts.values())) == sum(len(of_one) for of_one in texts.values())
    assert {split: {split_of(text) for text in texts[split]} for split in SPLITS} == {
        split: {split} for split in SPLITS
    }


def test_a_split_repeats_no_text_of_a_writer(rows: dict[SplitName, list[Message]]) -> None:
    for split in SPLITS:
        assert len({(row["user"], row["text"]) for row in rows[split]}) == len(rows[split])


def test_held_out_words_appear_in_test_messages_only(rows: dict[SplitName, list[Message]]) -> None:
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


def test_every_message_has_one_topic_one_setting_and_cues_that_do_not_cancel_out() -> None:
    category = {word: name for name, words in WORDS.items() for word in words}
    cues = {cue for pair in ASPECTS for cue in pair}
    cue_counts: Counter[int] = Counter()
    for writer in writers(4, 0):
        for row in messages(writer, 100, "train", 0) + messages(writer, 100, "test", 0):
            found = [category[word] for word in words_of(row["text"]) if word in category]
            assert sum(name in TOPICS for name in found) == 1
            assert ("company" in found) != ("solitude" in found)
            assert ("morning" in found) != ("evening" in found)
            told = cues.intersection(found)
            assert abs(writer.valence(row["text"])) == len(told)
            cue_counts[len(told)] += 1
    assert set(cue_counts) == {1, 2}
    assert 0.2 < cue_counts[2] / cue_counts.total() < 0.45


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("at dusk alone in the park, jazz again, the soup was tasty.", 1),
        ("at dusk alone in the park, jazz again, the soup was tasty, the host was kind.", 2),
        ("at dusk alone in the park, jazz again, the bus was late.", -1),
        ("at dusk alone in the park, more drizzle, the bus was late.", MILD - 1),
        ("at dusk alone in the park, more drizzle, the bus was late, the host was rude.", MILD - 2),
        ("at dusk alone in the park, more queues, the room was cosy.", 1 - MILD),
        ("at dusk with friends in the park, more chilli, the room was broken.", MILD - 1),
        ("at dusk alone in the park, more chilli, the room was broken.", -1),
    ],
)
def test_score_adds_cues_and_taste(writer: Writer, text: str, score: float) -> None:
    assert writer.score(text) == score


def test_the_evening_can_decide(writer: Writer) -> None:
    owl = replace(writer, setting="evening", strength=STRONG)
    assert owl.score("at dusk alone in the park, more chilli, the bus was late.") == STRONG - 1
    assert owl.score("at dawn alone in the park, more chilli, the bus was late.") == -1


def test_a_writer_can_prefer_the_opposite(writer: Writer) -> None:
    turned = replace(writer, prefers=("dark", "cosy"))
    assert turned.valence("the path was unlit, more jazz.") == 1
    assert turned.valence("the path was unlit, the room was shabby, more jazz.") == 0
    assert writer.valence("the path was unlit, more jazz.") == -1


@pytest.mark.parametrize("seed", SEEDS)
def test_writers_show_every_kind_of_rule_and_differ(seed: int) -> None:
    people = writers(8, seed)
    kinds = {(writer.setting, writer.strength) for writer in people}
    assert kinds == set(product(("company", "evening"), (MILD, STRONG)))
    for writer in people:
        ruled = {writer.loves, writer.hates, writer.loves_if}
        assert len(ruled) == 3
        assert ruled < set(TOPICS)
    assert len({(writer.loves, writer.hates, writer.loves_if) for writer in people}) >= 6


def test_a_community_turns_against_the_public_in_its_own_way() -> None:
    communities = [{writer.prefers for writer in writers(8, seed)} for seed in SEEDS]
    assert [len(of_one) for of_one in communities] == [1, 1, 1]
    assert len(set.union(*communities)) == len(SEEDS)
    for prefers in set.union(*communities):
        turned = [pair for pair, cue in zip(ASPECTS, prefers, strict=True) if cue == pair[1]]
        assert len(turned) == TURNED_ASPECTS
        assert not set(turned) & set(ASPECTS[:4])


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
    cues_only = [(people[0].valence(row["text"]) > 0) == row["label"] for row in rows]
    assert 0.70 <= sum(cues_only) / len(rows) <= result.common_rule + 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_the_public_rule_is_mediocre_for_a_community(seed: int) -> None:
    hits = []
    for writer in writers(8, seed):
        for row in messages(writer, 300, "test", seed):
            public = public_valence(row["text"])
            hits.append((public > 0) == row["label"] if public else 0.5)
    assert 0.55 <= sum(hits) / len(hits) <= 0.66


def test_ceilings_are_means_over_writers(writer: Writer) -> None:
    opposite = replace(writer, user="bo", loves="crowds", hates="rain", strength=STRONG)
    third = replace(writer, user="cy", strength=STRONG)
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
    with pytest.raises(DataError, match="no messages from which to compute"):
        ceilings([writer], [])


def test_an_unknown_split_is_refused(writer: Writer) -> None:
    with pytest.raises(DataError, match="'dev'"):
        messages(writer, 1, "dev", 0)  # type: ignore[arg-type]


def test_pretraining_uses_every_word() -> None:
    used = set().union(*(words_of(text) for text in pretraining_text(2000, 0)))
    assert set().union(*WORDS.values()) <= used


def test_pretraining_asks_as_the_task_does() -> None:
    texts = list(pretraining_text(200, 0))
    assert any(QUESTION.format(word=word) in text for text in texts for word in LABEL_WORDS)


def test_readers_have_names_of_their_own() -> None:
    names = {who for text in pretraining_text(3000, 0) for who, _ in VERDICTS_IN.findall(text)}
    assert len(names) == READERS + 1
    assert "i" in names
    assert not names.intersection(*WORDS.values())


def test_nobody_says_two_things_of_a_message() -> None:
    for text in pretraining_text(300, 0):
        who = [name for name, _ in VERDICTS_IN.findall(text)]
        assert len(who) == len(set(who)) <= VERDICTS


def test_unnamed_verdicts_follow_the_public() -> None:
    hits = [
        (public_valence(text) > 0) == (word == "loved")
        for text in pretraining_text(3000, 0)
        for who, word in VERDICTS_IN.findall(text)
        if who == "i"
    ]
    assert len(hits) > 1000
    assert 0.72 < sum(hits) / len(hits) < 0.82


def test_a_reader_is_the_same_person_in_all_texts() -> None:
    """Readers agree with the public's rule to different degrees, the same in all texts."""
    agreement: list[dict[str, list[bool]]] = [{}, {}]
    for index, text in enumerate(pretraining_text(6000, 0)):
        is_good = public_valence(text) > 0
        for who, word in VERDICTS_IN.findall(text):
            agrees = is_good == (word == "loved")
            agreement[index % 2].setdefault(who, []).append(agrees)
    readers = agreement[0].keys() & agreement[1].keys() - {"i"}
    shares = [[np.mean(half[who]) for who in sorted(readers)] for half in agreement]
    assert np.corrcoef(shares)[0, 1] > 0.35
