"""Clustering of clients by their projected gradients along common directions.

A projected gradient is a component of a client's gradient. If two clients measure the same
directions at the same state, the cosine of their projected gradients estimates the cosine of their
gradients. Sattler et al., Clustered Federated Learning (2021), section 2, cluster clients by this
cosine.

All examples of a step have the same label (client/training/local_step_plan.py). On every client,
most of the gradient of such a step makes this label likelier. This part does not distinguish
clients. It is therefore subtracted from each client's projected gradients, in proportion to their
norm in this step.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Scalars = Mapping[int, NDArray[np.float64]]
"""Projected gradients of each client, float64 [steps, queries], or [queries] for a single step."""

_RESTARTS = 20


def distinctive_parts(scalars: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return each client's scalars without the common part of all clients.

    Each client's projected gradients are first scaled to norm 1.

    Args:
        scalars: projected gradients of each client, float64 [steps, queries] or [queries].

    Returns:
        One row per client, float64 [clients, steps · queries].
    """
    rows = np.stack([np.atleast_2d(client_scalars) for client_scalars in scalars])
    rows = rows / _positive(np.linalg.norm(rows, axis=(1, 2), keepdims=True))
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    common = rows.sum(axis=0) / _positive(lengths.sum(axis=0))
    parts: NDArray[np.float64] = (rows - lengths * common).reshape(len(rows), -1)
    return parts


def cosine_similarities(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows of a matrix, [rows, rows]; 0 for a zero row."""
    rows = _unit(rows)
    cosines: NDArray[np.float64] = rows @ rows.T
    return cosines


def cluster_clients(scalars: Scalars, clusters: int) -> dict[int, int]:
    """Divide clients into clusters.

    The `distinctive_parts` of the clients are scaled to length 1, so that no client's noise
    dominates. For C clusters, they are projected onto their first C − 1 principal components, where
    noise has the least influence. K-means then divides the clients.

    Args:
        scalars: projected gradients of the clients.
        clusters: number of clusters to form; limited to the number of clients.

    Returns:
        The cluster of each client. Clusters are numbered from 0 in the order of their lowest client
        index.
    """
    clients = sorted(scalars)
    clusters = min(clusters, len(clients))
    if clusters < 2:
        return dict.fromkeys(clients, 0)
    # a late import, because it takes seconds
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
    """Return the cluster whose members have the highest mean cosine to another client.

    Args:
        client_scalars: projected gradients of the client, float64 [steps, queries].
        scalars: projected gradients of the clients with a cluster.
        clusters: cluster of each of these clients; not empty.
    """
    clients = [client for client in clusters if client in scalars]
    parts = distinctive_parts([client_scalars, *(scalars[client] for client in clients)])
    cosines = cosine_similarities(parts)[0, 1:]
    members = np.array([clusters[client] for client in clients])
    means = {c: float(cosines[members == c].mean()) for c in sorted(set(members))}
    return int(max(means, key=lambda cluster: means[cluster]))


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows scaled to length 1; rows of zeros are unchanged."""
    return rows / _positive(np.linalg.norm(rows, axis=1, keepdims=True))


def _positive(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lengths with every 0 replaced by 1, for use as divisors."""
    return np.where(lengths > 0, lengths, 1.0)
