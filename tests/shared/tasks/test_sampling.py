from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import DataError
from samara.shared.tasks.rows import Example
from samara.shared.tasks.sampling import LOW_DATA, sample_each_label, sample_splits


def examples(**counts: int) -> list[Example]:
    return [
        Example(f"{split} {i}", i % 2, "", split) for split, n in counts.items() for i in range(n)
    ]


def test_low_data_is_what_the_papers_train_on() -> None:
    whole = examples(train=1500, validation=400, test=2000)
    few = sample_splits(whole, LOW_DATA, 0)
    assert Counter(e.split for e in few) == {"train": 1000, "validation": 400, "test": 1000}


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**40))
def test_a_draw_keeps_the_order_and_grows_with_the_count(few: int, more: int, seed: int) -> None:
    whole = examples(train=25, test=5)
    counts = {"train": min(few, more)}, {"train": max(few, more)}
    smaller, larger = (sample_splits(whole, count, seed) for count in counts)
    assert len(smaller) == min(few, more, 25)
    assert set(smaller) <= set(larger) <= set(whole[:25])
    assert larger == [example for example in whole if example in larger]


def test_a_draw_depends_on_the_seed_and_not_on_the_wording() -> None:
    whole = examples(train=100)
    drawn = [sample_splits(whole, {"train": 10}, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    reworded = [Example(f"Q: {e.text}", e.label, "", "train") for e in whole]
    assert [e.text for e in sample_splits(reworded, {"train": 10}, 0)] == [
        f"Q: {e.text}" for e in drawn[0]
    ]
    assert [e.text for e in sample_splits(whole, {"train": 3}, 0)] == [
        "train 13",
        "train 34",
        "train 65",
    ]


def test_every_example_is_drawn_about_as_often() -> None:
    whole = examples(train=10)
    times = Counter(e.text for seed in range(500) for e in sample_splits(whole, {"train": 3}, seed))
    assert len(times) == 10
    assert all(110 <= count <= 190 for count in times.values())


def test_an_empty_split_is_named_with_the_remedy() -> None:
    with pytest.raises(
        DataError, match=r"the split 'validation' is empty; add rows to its file, or"
    ):
        sample_splits(examples(train=3, test=3), LOW_DATA, 0)


@pytest.mark.parametrize("counts", [{"dev": 1}, {"train": 0}, {"train": -5}])
def test_counts_that_make_no_sense(counts: dict[str, int]) -> None:
    with pytest.raises(DataError, match=r"cannot draw .* the splits are train, validation, test"):
        sample_splits(examples(train=3), counts, 0)


@given(st.integers(1, 20), st.integers(0, 2**40))
def test_as_many_of_each_label_are_drawn(per_label: int, seed: int) -> None:
    whole = examples(train=60, validation=45, test=30)
    drawn = sample_each_label(whole, per_label, 12, seed)
    counts = Counter((example.split, example.label) for example in drawn)
    for split in ("train", "validation"):
        assert counts[split, 0] == counts[split, 1] == per_label
    assert counts["test", 0] + counts["test", 1] == 12
    places = [whole.index(example) for example in drawn]
    assert places == sorted(places)
    smaller = sample_each_label(whole, max(1, per_label - 1), 12, seed)
    assert set(map(repr, smaller)) <= set(map(repr, drawn))


def test_a_label_with_fewer_examples_is_taken_whole_and_other_seeds_draw_others() -> None:
    whole = [*examples(train=40, validation=40, test=5), Example("rare", 2, "", "train")]
    drawn = sample_each_label(whole, 4, 5, 0)
    of_train = Counter(example.label for example in drawn if example.split == "train")
    assert of_train == {0: 4, 1: 4, 2: 1}
    assert drawn != sample_each_label(whole, 4, 5, 1)


@pytest.mark.parametrize("missing", ["train", "validation", "test"])
def test_each_label_of_an_empty_split_is_an_error(missing: str) -> None:
    counts = {split: 8 for split in ("train", "validation", "test") if split != missing}
    with pytest.raises(DataError, match=f"the split '{missing}' is empty"):
        sample_each_label(examples(**counts), 2, 4, 0)
