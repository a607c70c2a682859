"""Partitions of a data set among simulated clients."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from samara.shared.errors import DataError
from samara.shared.extensions import extension, is_extension
from samara.shared.tasks.rows import Example

_ATTEMPTS = 11
"""Largest number of draws of a Dirichlet division until every client has enough examples."""


def partition(
    examples: Sequence[Example],
    how: str,
    clients: int,
    alpha: float,
    seed: int,
) -> list[list[Example]]:
    """Divide the examples of all splits among clients.

    ``iid`` gives every client an equal random share. ``dirichlet`` draws the clients' shares of a
    label from a symmetric Dirichlet distribution: the smaller alpha, the fewer labels make up most
    of a client's examples. The skew is the same in a client's training, validation and test split.
    ``user`` makes each user a client, in the order of the users' names. If there are more users
    than clients, the users with the most training examples are kept. ``auto`` is ``user`` if an
    example has a user, otherwise ``iid``. Any other name is a registered function
    (`samara.register.partition`).

    Args:
        examples: all examples of all splits.
        how: kind of the division.
        clients: number of clients.
        alpha: concentration of ``dirichlet``, above 0; unused in other divisions.
        seed: seed of the division, at least 0; unused for ``user``.

    Returns:
        The examples of each client, in their original order.

    Raises:
        DataError: if a client would have no training example, users are missing or too few, or an
            argument is out of range.
    """
    if clients < 1 or seed < 0 or (how == "dirichlet" and not 0 < alpha < np.inf):
        raise DataError(
            f"cannot divide data by clients = {clients}, alpha = {alpha}, seed = {seed}; "
            "clients must be at least 1, alpha above 0 and finite, seed at least 0"
        )
    if how == "auto":
        how = "user" if any(example.user for example in examples) else "iid"
    if how == "user":
        shares = _by_user(examples, clients)
    elif is_extension(how):
        shares = _by_extension(examples, how, clients, alpha, seed)
    else:
        shares = _by_chance(examples, how, clients, alpha, seed)
    for client, share in enumerate(shares):
        if not any(example.split == "train" for example in share):
            name = f"client {client}" + (f" (user {share[0].user!r})" if how == "user" else "")
            raise DataError(
                f"{name} has no training example; use fewer clients, a larger alpha or more data, "
                "or, if data.split is text, another data.seed"
            )
    return shares


def _by_user(examples: Sequence[Example], clients: int) -> list[list[Example]]:
    shares: defaultdict[str, list[Example]] = defaultdict(list)
    for example in examples:
        shares[example.user].append(example)
    if "" in shares:
        raise DataError(
            f"{len(shares[''])} of {len(examples)} examples have no user; add a 'user' field to "
            "the data, name another field as user in the task file, or set data.partition to iid "
            "or dirichlet"
        )
    if clients > len(shares):
        raise DataError(
            f"there are {clients} clients, but only {len(shares)} users; use at most {len(shares)} "
            "clients"
        )
    training = Counter(example.user for example in examples if example.split == "train")
    kept = sorted(shares, key=lambda user: (-training[user], user))[:clients]
    return [shares[user] for user in sorted(kept)]


def _by_extension(
    examples: Sequence[Example], how: str, clients: int, alpha: float, seed: int
) -> list[list[Example]]:
    """Divide examples by a registered function, which returns a client or −1 for each example.

    Raises:
        DataError: if the result is not an integer from −1 to clients − 1 for every example.
    """
    numbers = np.asarray(extension("partition", how)(examples, clients, alpha, seed))
    sound = numbers.shape == (len(examples),) and numbers.dtype.kind in "iu"
    if not sound or not np.all((numbers >= -1) & (numbers < clients)):
        raise DataError(
            f"partition {how!r}: the function must return a client from 0 to {clients - 1}, or −1 "
            f"for none, for each of {len(examples)} examples"
        )
    return [
        [examples[index] for index in np.flatnonzero(numbers == client).tolist()]
        for client in range(clients)
    ]


def _by_chance(
    examples: Sequence[Example],
    how: str,
    clients: int,
    alpha: float,
    seed: int,
) -> list[list[Example]]:
    training = sum(example.split == "train" for example in examples)
    if training < clients:
        raise DataError(
            f"client {training} has no training example: there are only {training} examples for "
            f"{clients} clients; use fewer clients or more data"
        )
    try:
        if how == "iid":
            order = np.array(_interleave([example.split for example in examples], seed))
            shares = np.array_split(order, clients)
        else:
            order = np.array(_interleave([(e.label, e.split) for e in examples], seed))
            labels = np.array([example.label for example in examples])[order]
            shares = [order[share] for share in _dirichlet_shares(labels, clients, alpha, seed)]
    except (ValueError, FloatingPointError) as error:
        raise DataError(
            f"alpha = {alpha} leaves at least one of {clients} clients with too few examples in "
            "every attempt; use fewer clients, a larger alpha, more data or another seed"
        ) from error
    return [[examples[index] for index in sorted(share.tolist())] for share in shares]


def _dirichlet_shares(
    labels: NDArray[np.int64], clients: int, alpha: float, seed: int
) -> list[list[int]]:
    """Draw the clients' shares of each label, until every client has enough examples.

    A client that already has more than the average number of examples gets no examples of the next
    label. The result equals that of Flower Datasets' DirichletPartitioner, which is not used
    because its import takes seconds and 140 MB.

    Args:
        labels: labels of the examples, int64 [n].
        clients: number of clients.
        alpha: concentration.
        seed: seed of the draws.

    Returns:
        The indices of each client's examples.

    Raises:
        ValueError: if a client has too few examples in every attempt, or alpha is too small.
        FloatingPointError: if no client is left for a label's examples.
    """
    generator = np.random.default_rng(seed)
    fewest = max(1, min(10, len(labels) // clients // 10))
    examples_by_label = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_ATTEMPTS):
        shares: list[list[int]] = [[] for _ in range(clients)]
        for indices in examples_by_label:
            portions = generator.dirichlet(np.full(clients, alpha))
            portions[[len(share) > len(labels) / clients for share in shares]] = 0
            with np.errstate(invalid="raise", divide="raise"):
                portions /= np.cumsum(portions)[-1]
            ends = (np.cumsum(portions) * len(indices)).astype(np.int64)[:-1]
            for share, part in zip(shares, np.split(indices, ends), strict=True):
                share.extend(part.tolist())
        if min(map(len, shares)) >= fewest:
            return shares
    raise ValueError(f"a client has fewer than {fewest} examples in {_ATTEMPTS} attempts")


def _interleave(strata: Sequence[Hashable], seed: int) -> list[int]:
    """Shuffle indices so that the strata have equal proportions in every consecutive part."""
    generator = np.random.default_rng(seed)
    members: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index in generator.permutation(len(strata)).tolist():
        members[strata[index]].append(index)
    position = {}
    for indices in members.values():
        phase = generator.random()
        for rank, index in enumerate(indices):
            position[index] = (rank + phase) / len(indices)
    return sorted(position, key=position.__getitem__)
