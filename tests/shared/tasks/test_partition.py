import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st

from samara.shared.errors import DataError
from samara.shared.tasks.partition import _interleave, partition
from samara.shared.tasks.rows import Example


def sorted_examples(train: int, test: int, labels: int = 2) -> list[Example]:
    """Examples in the order of sorted files: by split, and by label within a split."""
    return [
        Example(f"{split} {i}", i * labels // count, "", split)
        for split, count in (("train", train), ("test", test))
        for i in range(count)
    ]


def share_of_label(examples: Sequence[Example], split: str) -> float:
    labels = [example.label for example in examples if example.split == split]
    return labels.count(0) / len(labels)


@pytest.mark.parametrize("how", ["iid", "dirichlet"])
def test_every_example_goes_to_one_client(how: Any) -> None:
    examples = sorted_examples(400, 100)
    clients = partition(examples, how, 4, 1.0, 0)
    assert len(clients) == 4
    assert Counter(example for share in clients for example in share) == Counter(examples)
    for share in clients:
        assert share == sorted(share, key=examples.index)


@pytest.mark.parametrize("how", ["iid", "dirichlet"])
def test_division_follows_the_seed(how: Any) -> None:
    examples = sorted_examples(400, 100)
    assert partition(examples, how, 4, 1.0, 5) == partition(examples, how, 4, 1.0, 5)
    assert partition(examples, how, 4, 1.0, 5) != partition(examples, how, 4, 1.0, 6)


def test_iid_shares_of_sorted_data_are_equal_and_mixed() -> None:
    for share in partition(sorted_examples(800, 200), "iid", 5, 1.0, 0):
        splits = Counter(example.split for example in share)
        assert len(share) == 200
        assert abs(splits["train"] - 160) <= 1
        assert 0.35 < share_of_label(share, "train") < 0.65


def test_dirichlet_skews_all_splits_of_a_client_alike() -> None:
    clients = partition(sorted_examples(4000, 1000), "dirichlet", 5, 0.5, 1)
    skews = [share_of_label(share, "train") for share in clients]
    assert max(skews) - min(skews) > 0.3
    for share, skew in zip(clients, skews, strict=True):
        test = sum(example.split == "test" for example in share)
        assert abs(share_of_label(share, "test") - skew) < 2 / test + 0.01
        assert abs(test / len(share) - 0.2) < 2 / len(share) + 0.01


def test_a_large_alpha_skews_less() -> None:
    def spread(alpha: float) -> float:
        clients = partition(sorted_examples(2000, 500), "dirichlet", 5, alpha, 0)
        skews = [share_of_label(share, "train") for share in clients]
        return max(skews) - min(skews)

    assert spread(1000.0) < 0.1 < spread(0.3)


@settings(max_examples=20, deadline=None)
@given(
    train=st.integers(1, 60),
    test=st.integers(0, 20),
    clients=st.integers(1, 8),
    alpha=st.floats(1e-6, 1e6),
    how=st.sampled_from(["iid", "dirichlet"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_everyone_trains_or_the_division_is_refused(
    train: int, test: int, clients: int, alpha: float, how: Any, seed: int
) -> None:
    examples = sorted_examples(train, test)
    try:
        shares = partition(examples, how, clients, alpha, seed)
    except DataError:
        return
    assert Counter(example for share in shares for example in share) == Counter(examples)
    assert all(any(example.split == "train" for example in share) for share in shares)


def of_user(user: str, train: int, test: int = 1) -> list[Example]:
    return [Example(f"{user} {i}", 0, user, "train") for i in range(train)] + [
        Example(f"{user} test {i}", 0, user, "test") for i in range(test)
    ]


def test_users_become_clients_in_order_of_their_names() -> None:
    examples = [*of_user("cy", 3), *of_user("ann", 2), *of_user("bob", 5)]
    assert partition(examples, "user", 3, 1.0, 0) == [
        of_user("ann", 2),
        of_user("bob", 5),
        of_user("cy", 3),
    ]


def test_users_with_most_training_examples_are_kept() -> None:
    examples = [*of_user("dee", 2), *of_user("ann", 1, 9), *of_user("cy", 4), *of_user("bob", 2)]
    clients = partition(examples, "user", 2, 1.0, 0)
    assert [share[0].user for share in clients] == ["bob", "cy"]


@pytest.mark.parametrize(("user", "how"), [("ann", "user"), ("", "iid")])
def test_users_decide_the_division_where_it_is_left_open(user: str, how: str) -> None:
    examples = [*of_user(user, 4), *of_user("bob" if user else "", 4)]
    assert partition(examples, "auto", 2, 1.0, 0) == partition(examples, how, 2, 1.0, 0)


def test_more_clients_than_users_are_refused() -> None:
    with pytest.raises(DataError, match="there are 3 clients, but only 2 users; use at most 2"):
        partition([*of_user("ann", 1), *of_user("bob", 1)], "user", 3, 1.0, 0)


def test_division_by_user_needs_users() -> None:
    with pytest.raises(DataError, match="2 of 4 examples have no user; add a 'user' field"):
        partition([*of_user("ann", 1), *of_user("", 1)], "user", 1, 1.0, 0)


def test_client_without_training_example_is_named() -> None:
    with pytest.raises(DataError, match=r"client 1 \(user 'bob'\) has no training example; use"):
        partition([*of_user("ann", 1), *of_user("bob", 0)], "user", 2, 1.0, 0)
    with pytest.raises(
        DataError, match="client 3 has no training example: there are only 3 examples for 4"
    ):
        partition(sorted_examples(3, 9), "iid", 4, 1.0, 0)


def test_hopeless_alpha_is_refused_in_words() -> None:
    with pytest.raises(DataError, match="use fewer clients, a larger alpha"):
        partition(sorted_examples(400, 100), "dirichlet", 8, 1e-5, 0)


@pytest.mark.parametrize(
    ("clients", "alpha", "seed"),
    [(0, 1.0, 0), (2, 0.0, 0), (2, float("nan"), 0), (2, float("inf"), 0), (2, 1.0, -1)],
)
def test_arguments_out_of_range_are_refused(clients: int, alpha: float, seed: int) -> None:
    with pytest.raises(DataError, match="clients must be at least 1, alpha above 0"):
        partition(sorted_examples(9, 9), "dirichlet", clients, alpha, seed)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=20, max_size=200),
    st.sampled_from(["iid", "dirichlet"]),
    st.integers(1, 6),
    st.sampled_from([0.05, 0.5, 5.0]),
    st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=60)
def test_shares_are_those_of_flower_datasets(
    rows: list[tuple[int, bool]], how: Any, clients: int, alpha: float, seed: int
) -> None:
    examples = [
        Example(str(i), label, "", "test" if held_out else "train")
        for i, (label, held_out) in enumerate(rows)
    ]
    key = (lambda e: (e.label, e.split)) if how == "dirichlet" else (lambda e: e.split)
    order = _interleave([key(example) for example in examples], seed)
    partitioner: Any = IidPartitioner(clients)
    if how == "dirichlet":
        fewest = max(1, min(10, len(examples) // clients // 10))
        partitioner = DirichletPartitioner(
            clients, "label", alpha, fewest, self_balancing=True, seed=seed
        )
    labels = [examples[index].label for index in order]
    partitioner.dataset = Dataset.from_dict({"index": order, "label": labels})
    expected = None
    with warnings.catch_warnings(), np.errstate(invalid="raise", divide="raise"):
        warnings.simplefilter("ignore", UserWarning)
        with suppress(ValueError, FloatingPointError):
            expected = [sorted(partitioner.load_partition(c)["index"]) for c in range(clients)]
    shares = None
    try:
        shares = partition(examples, how, clients, alpha, seed)
    except DataError as error:
        if "no training example" in str(error):
            return
    found = shares and [[int(example.text) for example in share] for share in shares]
    assert found == expected
