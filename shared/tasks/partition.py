"""Partitions of a data set among simulated clients."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from shared.errors import DataError
from shared.tasks.rows import Example


def partition(
    examples: Sequence[Example],
    how: Literal["iid", "dirichlet", "user"],
    clients: int,
    alpha: float,
    seed: int,
) -> list[list[Example]]:
    """Divide examples among clients; all splits at once, so that a client's splits are similar.

    ``iid`` gives every client an equal random share. ``dirichlet`` draws the clients' shares of a
    label from a symmetric Dirichlet distribution: the smaller alpha, the fewer labels make up most
    of a client's examples; training, validation and test examples have the same skew. ``user``
    makes each user a client, in order of their names; if there are more users than clients, those
    with the most training examples are kept.

    Args:
        examples: all examples of all splits.
        how: kind of the division.
        clients: number of clients.
        alpha: concentration of ``dirichlet``, above 0; ignored by the others.
        seed: seed of the division, at least 0; ignored by ``user``.

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
    if how == "user":
        shares = _by_user(examples, clients)
    else:
        shares = _by_chance(examples, how, clients, alpha, seed)
    for client, share in enumerate(shares):
        if not any(example.split == "train" for example in share):
            name = f"client {client}" + (f" (user {share[0].user!r})" if how == "user" else "")
            raise DataError(
                f"{name} has no training example; use fewer clients, a larger alpha or more data"
            )
    return shares


def _by_user(examples: Sequence[Example], clients: int) -> list[list[Example]]:
    shares: defaultdict[str, list[Example]] = defaultdict(list)
    for example in examples:
        shares[example.user].append(example)
    if "" in shares:
        raise DataError(
            f"{len(shares[''])} of {len(examples)} examples have no user; "
            "add a 'user' field to the data or divide it by iid or dirichlet"
        )
    if clients > len(shares):
        raise DataError(
            f"{clients} clients for {len(shares)} users; use at most {len(shares)} clients"
        )
    training = Counter(example.user for example in examples if example.split == "train")
    kept = sorted(shares, key=lambda user: (-training[user], user))[:clients]
    return [shares[user] for user in sorted(kept)]


def _by_chance(
    examples: Sequence[Example],
    how: Literal["iid", "dirichlet"],
    clients: int,
    alpha: float,
    seed: int,
) -> list[list[Example]]:
    training = sum(example.split == "train" for example in examples)
    if training < clients:
        raise DataError(
            f"client {training} has no training example: there are {training} for {clients} "
            "clients; use fewer clients or more data"
        )
    # Imported here because it takes seconds.
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

    if how == "iid":
        partitioner = IidPartitioner(clients)
        order = _interleave([example.split for example in examples], seed)
    else:
        average = len(examples) // clients
        partitioner = DirichletPartitioner(
            clients,
            partition_by="label",
            alpha=alpha,
            min_partition_size=max(1, min(10, average // 10)),
            self_balancing=True,
            seed=seed,
        )
        order = _interleave([(example.label, example.split) for example in examples], seed)
    labels = [examples[index].label for index in order]
    partitioner.dataset = Dataset.from_dict({"index": order, "label": labels})
    try:
        # The partitioner warns at each of its ten attempts, and divides by zero when alpha is so
        # small that all shares of a label vanish.
        with warnings.catch_warnings(), np.errstate(invalid="raise", divide="raise"):
            warnings.simplefilter("ignore", UserWarning)
            shares = [partitioner.load_partition(client)["index"] for client in range(clients)]
    except (ValueError, FloatingPointError) as error:
        raise DataError(
            f"alpha = {alpha} leaves a client of {clients} without examples in every attempt; "
            "use fewer clients, a larger alpha, more data or another seed"
        ) from error
    return [[examples[index] for index in sorted(share)] for share in shares]


def _interleave(strata: Sequence[Hashable], seed: int) -> list[int]:
    """Return shuffled indices of which every consecutive part has each stratum in proportion.

    Flower's partitioners cut the data, or those of each label, into consecutive parts without
    shuffling them first.
    """
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
