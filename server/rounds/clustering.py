"""Clustering of clients by their projected gradients along the same directions. Pure.

A projected gradient is a component of a client's gradient. Along the same directions, from the same
state, the cosine of two clients' projected gradients estimates that of their gradients (clustering
by it: Sattler et al., Clustered Federated Learning, 2021, section 2).

The examples of a step have one label (client/training/local_step_plan.py), and most of their
gradient, in every client, makes that label likelier. The rest tells clients apart. So the part that
clients have in common in a step is subtracted, in proportion to the lengths of their rows.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Scalars = Mapping[int, NDArray[np.float64]]
"""Projected gradients by client, float64 [steps, queries]; [n] is one step."""

_RESTARTS = 20


def distinctive_parts(scalars: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return each client's scalars without the part that all have in common.

    Args:
        scalars: projected gradients of each client, float64 [steps, queries] or [n]; their length
            does not matter.

    Returns:
        Rows, float64 [clients, steps · queries].
    """
    rows = np.stack([np.atleast_2d(client_scalars) for client_scalars in scalars])
    rows = rows / _positive(np.linalg.norm(rows, axis=(1, 2), keepdims=True))
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    common = rows.sum(axis=0) / _positive(lengths.sum(axis=0))
    parts: NDArray[np.float64] = (rows - lengths * common).reshape(len(rows), -1)
    return parts


def cosine_similarities(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosines between the rows of a matrix, [rows, rows]; 0 with a row of zeros."""
    rows = _unit(rows)
    cosines: NDArray[np.float64] = rows @ rows.T
    return cosines


def cluster_clients(scalars: Scalars, clusters: int) -> dict[int, int]:
    """Divide clients into clusters, counted from 0 in the order of their lowest client.

    The distinctive parts, scaled to length 1 so that no client's noise dominates, are divided by
    k-means along their clusters − 1 leading directions, where noise counts least.

    Args:
        scalars: projected gradients of the clients.
        clusters: number of clusters; fewer are made of fewer clients.
    """
    clients = sorted(scalars)
    clusters = min(clusters, len(clients))
    if clusters < 2:
        return dict.fromkeys(clients, 0)
    # Imported here because it takes seconds.
    from sklearn.cluster import KMeans

    rows = _unit(distinctive_parts([scalars[client] for client in clients]))
    left, sizes, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    leading = (left * sizes)[:, : clusters - 1]
    labels = KMeans(clusters, n_init=_RESTARTS, random_state=0).fit_predict(leading).tolist()
    cluster_of = {label: cluster for cluster, label in enumerate(dict.fromkeys(labels))}
    return {client: cluster_of[label] for client, label in zip(clients, labels, strict=True)}


def nearest_cluster(
    client_scalars: NDArray[np.float64], scalars: Scalars, clusters: Mapping[int, int]
) -> int:
    """Return the cluster whose members' scalars agree best with a newcomer's on average.

    Args:
        client_scalars: projected gradients of the newcomer.
        scalars: projected gradients of other clients.
        clusters: cluster of each client that has one, at least one.
    """
    clients = [client for client in clusters if client in scalars]
    parts = distinctive_parts([client_scalars, *(scalars[client] for client in clients)])
    cosines = cosine_similarities(parts)[0, 1:]
    members = np.array([clusters[client] for client in clients])
    means = {c: float(cosines[members == c].mean()) for c in sorted(set(members))}
    return int(max(means, key=lambda cluster: means[cluster]))


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows scaled to length 1; a row of zeros stays."""
    return rows / _positive(np.linalg.norm(rows, axis=1, keepdims=True))


def _positive(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lengths as divisors: 0 becomes 1."""
    return np.where(lengths > 0, lengths, 1.0)
