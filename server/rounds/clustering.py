"""Which clients belong together, by the agreement of their scalars on the same directions. Pure.

A projected gradient is a component of a client's gradient. Along the same directions, from the same
state, the lists of two clients agree as far as their gradients do: their cosine estimates that of
the gradients (clustering by it: Sattler et al., Clustered Federated Learning, 2021, section 2).

A step's examples have one label (client/training/local_step_plan.py), and nearly all
of their gradient is that the
label should be likelier, which every client says. What tells clients apart is the rest, so what a
step's lists have in common is taken off them, in proportion to their lengths.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Scalars = Mapping[int, NDArray[np.float64]]
"""By client, float64 [steps, queries] along the same directions; [n] is one step."""

_RESTARTS = 20


def distinctive_parts(scalars: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """What is a client's own in its lists, float64 [clients, steps · queries].

    Args:
        scalars: of the clients, float64 [steps, queries] or [n] each; how long a client's are in
            all does not count.
    """
    rows = np.stack([np.atleast_2d(own) for own in scalars])
    rows = rows / _positive(np.linalg.norm(rows, axis=(1, 2), keepdims=True))
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    common = rows.sum(axis=0) / _positive(lengths.sum(axis=0))
    own: NDArray[np.float64] = (rows - lengths * common).reshape(len(rows), -1)
    return own


def cosine_similarities(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines between the rows of a matrix, [clients, clients]; 0 with a row of zeros."""
    rows = _unit(rows)
    cosines: NDArray[np.float64] = rows @ rows.T
    return cosines


def cluster_clients(scalars: Scalars, groups: int) -> dict[int, int]:
    """Divide clients into groups, counted from 0 in the order of their lowest client.

    What is the clients' own, brought to length 1 again so that nobody's noise leads, is divided by
    k-means along its groups − 1 leading directions, where noise counts least.

    Args:
        scalars: of the clients.
        groups: how many; fewer where there are fewer clients.
    """
    clients = sorted(scalars)
    groups = min(groups, len(clients))
    if groups < 2:
        return dict.fromkeys(clients, 0)
    # Imported here because it takes seconds.
    from sklearn.cluster import KMeans

    rows = _unit(distinctive_parts([scalars[client] for client in clients]))
    left, sizes, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    places = (left * sizes)[:, : groups - 1]
    found = KMeans(groups, n_init=_RESTARTS, random_state=0).fit_predict(places).tolist()
    order = {name: place for place, name in enumerate(dict.fromkeys(found))}
    return {client: order[name] for client, name in zip(clients, found, strict=True)}


def nearest_cluster(own: NDArray[np.float64], scalars: Scalars, groups: Mapping[int, int]) -> int:
    """The group with whose members a newcomer's list agrees best on the average."""
    clients = [client for client in groups if client in scalars]
    cosines = cosine_similarities(
        distinctive_parts([own, *(scalars[client] for client in clients)])
    )[0, 1:]
    member = np.array([groups[client] for client in clients])
    means = {group: float(cosines[member == group].mean()) for group in sorted(set(member))}
    return int(max(means, key=lambda group: means[group]))


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / _positive(np.linalg.norm(rows, axis=1, keepdims=True))


def _positive(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Something to divide by: what is 0 is 1."""
    return np.where(lengths > 0, lengths, 1.0)
