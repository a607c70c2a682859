"""Splits by text depend only on a hash of the text and a seed, not on the owner of the row."""

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from data_rows import TASK, write_jsonl
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.shared.errors import DataError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.data import load_examples
from samara.shared.tasks.growing import read_growing, split_of
from samara.shared.tasks.kinds import ChoiceTask
from samara.shared.tasks.partition import partition
from samara.shared.tasks.rows import Example, read_rows
from samara.shared.tasks.text_split import SharedTexts, normalized, split_of_text

POPQUORN = Path(__file__).parents[4] / "shared" / "data" / "popquorn_offensiveness" / "all.jsonl"


def by_hand(seed: int, *fields: str) -> str:
    """The split of normalized fields, as docs/guides/own-data.md defines it."""
    digest = hashlib.sha256(f"split\n{seed}\n{chr(10).join(fields)}".encode()).hexdigest()
    percent = int(digest[:16], 16) / 2**64 * 100
    return "test" if percent < 20 else "validation" if percent < 30 else "train"


@pytest.mark.parametrize(
    ("seed", "fields", "split"),
    [
        (0, ("the film was good",), "train"),
        (0, ("Straße",), "train"),
        (0, ("A", "b"), "test"),
        (0, ("a b",), "train"),
        (1, ("c",), "validation"),
        (2, ("Kind walk",), "test"),
        (5, ("kind walk",), "validation"),
    ],
)
def test_the_split_is_that_of_a_hash_that_anybody_can_compute(
    seed: int, fields: tuple[str, ...], split: str
) -> None:
    folded = [field.casefold() for field in fields]
    assert split_of_text(fields, seed) == by_hand(seed, *folded) == split


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("  The\tfilm \n was GOOD ", "the film was good"),
        ("ﬁlm № 5", "film no 5"),
        ("Straße", "STRASSE"),
        ("cafe\u0301", "CAF\u00c9"),
        ("wide\u3000ＡＢＣ\u00a0x", "wide abc x"),
    ],
)
def test_texts_that_differ_in_form_case_or_spaces_are_the_same(text: str, same: str) -> None:
    assert normalized(text) == normalized(same)
    assert normalized("a b") != normalized("ab")


TEXTS = st.lists(st.text("aBß ﬁé\t", min_size=1).filter(str.strip), min_size=1, max_size=12)


@settings(max_examples=25)
@given(st.lists(TEXTS, min_size=2, max_size=4), st.integers(0, 5), st.sampled_from(["u", "n"]))
def test_every_user_alone_finds_the_split_that_all_find_together(
    tmp_path_factory: pytest.TempPathFactory, users: list[list[str]], seed: int, form: str
) -> None:
    """Rows may be in one file or a file per user, in any order and format, watched or read once."""
    folder = tmp_path_factory.mktemp("d")
    rows = [
        {"text": text, "label": n % 2, "user": str(user)}
        for user, texts in enumerate(users)
        for n, text in enumerate([*texts, users[0][0]])
    ]
    together = load_examples(write_jsonl(folder / "all.jsonl", rows), TASK, seed, split="text")
    assert len(together) == len(rows)
    known = {normalized(example.text): example.split for example in together}
    assert all(known[normalized(example.text)] == example.split for example in together)
    for user in range(len(users)):
        other = [
            row
            | {
                "text": unicodedata.normalize("NFD", str(row["text"]))
                if form == "n"
                else f" {row['text']}  ",
                "label": 0,
            }
            for row in reversed(rows)
            if row["user"] == str(user)
        ]
        path = write_jsonl(folder / f"own-{user}.jsonl", other)
        alone = load_examples(path, TASK, seed, split="text")
        grown, problems = read_growing(path, TASK, seed, "text")
        assert not problems
        for example in [*alone, *(row.example for row in grown)]:
            assert known[normalized(example.text)] == example.split


def test_the_shares_are_those_of_other_splits_in_the_mean(tmp_path: Path) -> None:
    rows = [{"text": f"film {n}", "label": n % 2, "user": str(n % 9)} for n in range(3000)]
    path = write_jsonl(tmp_path / "all.jsonl", rows)
    counts = Counter(example.split for example in load_examples(path, TASK, 0, split="text"))
    # Four standard deviations of a binomial.
    assert counts["test"] == pytest.approx(600, abs=4 * (3000 * 0.2 * 0.8) ** 0.5)
    assert counts["validation"] == pytest.approx(300, abs=4 * (3000 * 0.1 * 0.9) ** 0.5)
    other = load_examples(path, TASK, 1, split="text")
    assert Counter(e.split for e in other) != counts


def test_splits_that_a_source_has_stay_and_others_are_cut(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", [{"text": f"a {n}", "label": n % 2} for n in range(200)])
    write_jsonl(tmp_path / "test.jsonl", [{"text": f"b {n}", "label": n % 2} for n in range(20)])
    examples = load_examples(str(tmp_path), TASK, 0, split="text")
    assert {e.text for e in examples if e.split == "test"} == {f"b {n}" for n in range(20)}
    for example in examples:
        if example.text.startswith("a"):
            expected = by_hand(0, example.text)
            assert example.split == (expected if expected == "validation" else "train")


def choice_row(premise: str, first: str, second: str) -> dict[str, Any]:
    return {
        "premise": premise,
        "choice1": first,
        "choice2": second,
        "question": "cause",
        "label": 0,
    }


def test_choices_are_split_by_their_text_without_the_candidates() -> None:
    task = load_task("copa")
    assert isinstance(task, ChoiceTask)
    [one] = read_rows(choice_row("It rained.", "a cloud", "a cat"), task)
    [other] = read_rows(choice_row("it  RAINED.", "a dog", "a cow"), task)
    assert one.example.source == ("It rained.", "cause")
    assert all(split_of(one, s, "text") == split_of(other, s, "text") for s in range(40))
    assert any(split_of(one, s) != split_of(other, s) for s in range(40))


@pytest.mark.parametrize(
    ("task", "row", "source"),
    [
        ("texts", {"text": "Dear all", "user": "ann"}, ("Dear all",)),
        ("responses", {"prompt": "How?", "response": "So."}, ("How?",)),
        ("rte", {"premise": "p", "hypothesis": "h", "label": 0}, ("p", "h")),
        ("rte-mask", {"premise": "p", "hypothesis": "h", "label": 0}, ("p", "h")),
    ],
)
def test_every_kind_of_task_is_split_by_what_its_text_reads(
    task: str, row: dict[str, Any], source: tuple[str, ...]
) -> None:
    [read] = read_rows(row, load_task(task))
    assert read.example.source == source
    parts = [by_hand(seed, *map(str.casefold, source)) for seed in range(20)]
    assert [split_of(read, seed, "text") for seed in range(20)] == parts


def test_the_wording_of_the_task_and_the_label_play_no_part() -> None:
    other = TASK.model_copy(update={"text": "Review: {text}"})
    [one] = read_rows({"text": "so good", "label": 0}, TASK)
    [same] = read_rows({"text": "so good", "label": 1, "user": "bob"}, other)
    assert all(split_of(one, s, "text") == split_of(same, s, "text") for s in range(40))


def test_a_user_whose_training_part_is_empty_is_named_with_the_remedy(tmp_path: Path) -> None:
    texts = [f"t {n}" for n in range(100)]
    held_out = next(text for text in texts if by_hand(0, text) == "test")
    rows = [{"text": text, "label": 0, "user": "ann"} for text in texts]
    rows.append({"text": held_out, "label": 1, "user": "bob"})
    path = write_jsonl(tmp_path / "all.jsonl", rows)
    examples = load_examples(path, TASK, 0, split="text")
    with pytest.raises(DataError, match=r"user 'bob'.*no training example.*another data.seed"):
        partition(examples, "user", 2, 0.5, 0)
    assert len(partition(examples, "user", 1, 0.5, 0)) == 1


def shared_by_hand(shares: Iterable[Sequence[Example]]) -> tuple[int, int]:
    """Count test examples, and test examples whose text somebody else trains on, one by one."""
    owners: dict[str, set[int]] = defaultdict(set)
    tested = []
    for client, examples in enumerate(shares):
        for example in examples:
            text = " ".join(unicodedata.normalize("NFKC", example.text).casefold().split())
            if example.split == "train":
                owners[text].add(client)
            if example.split == "test":
                tested.append((client, text))
    return len(tested), sum(bool(owners[text] - {client}) for client, text in tested)


@pytest.mark.parametrize("split", ["random", "text"])
def test_shared_texts_are_counted(split: Any, tmp_path: Path) -> None:
    rows = [
        {"text": f"Film {n % 40}" if n % 3 else f"own {n}", "label": n % 2, "user": str(n // 40)}
        for n in range(240)
    ]
    examples = load_examples(write_jsonl(tmp_path / "a.jsonl", rows), TASK, 0, split=split)
    shares = partition(examples, "user", 6, 0.5, 0)
    found = SharedTexts.among(shares)
    assert (found.test, found.shared) == shared_by_hand(shares)
    assert bool(found.shared) == (split == "random")
    sentence = found.describe(split)
    assert sentence == "" if split == "text" else f"{found.shared} of {found.test} test" in sentence


@pytest.mark.exhaustive
@pytest.mark.skipif(not POPQUORN.exists(), reason="needs shared/data")
def test_raters_share_nearly_all_texts_unless_these_decide(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in POPQUORN.read_text().splitlines()]
    kept = [{"text": r["text"], "label": int(r["label"] > 1), "user": r["user"]} for r in rows]
    path = write_jsonl(tmp_path / "all.jsonl", kept)
    counts = {}
    for split in ("random", "text"):
        examples = load_examples(path, TASK, 0, split=split)
        shares = partition(examples, "user", 200, 0.5, 0)
        counts[split] = SharedTexts.among(shares)
        assert (counts[split].test, counts[split].shared) == shared_by_hand(shares)
    assert counts["random"].shared > 0.95 * counts["random"].test
    assert counts["text"].shared == 0
