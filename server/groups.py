"""Which clients belong together, by the agreement of their scalars on the same directions. Pure.

A projected gradient is a component of a client's gradient. Along the same directions, from the same
state, the lists of two clients agree as far as their gradients do: their cosine estimates that of
the gradients (clustering by it: Sattler et al., Clustered Federated Learning, 2021, section 2).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Scalars = Mapping[int, NDArray[np.float64]]
"""By device, float64 [n] along the same n directions."""

_RESTARTS = 20


def agreement(scalars: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Cosines between the lists of clients, float64 [clients, clients]; 0 with a list of zeros."""
    rows = _normalized(np.stack(scalars))
    cosines: NDArray[np.float64] = rows @ rows.T
    return cosines


def grouped(scalars: Scalars, groups: int) -> dict[int, int]:
    """Divide devices into groups, counted from 0 in the order of their lowest device.

    The lists are brought to length 1, what all have in common is taken off, and what is left is
    divided by k-means along its groups − 1 leading directions, where noise counts least.

    Args:
        scalars: of the devices.
        groups: how many; fewer where there are fewer devices.
    """
    devices = sorted(scalars)
    groups = min(groups, len(devices))
    if groups < 2:
        return dict.fromkeys(devices, 0)
    # Imported here because it takes seconds.
    from sklearn.cluster import KMeans

    rows = _normalized(np.stack([scalars[device] for device in devices]))
    left, sizes, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    places = (left * sizes)[:, : groups - 1]
    found = KMeans(groups, n_init=_RESTARTS, random_state=0).fit_predict(places).tolist()
    order = {name: place for place, name in enumerate(dict.fromkeys(found))}
    return {device: order[name] for device, name in zip(devices, found, strict=True)}


def nearest(own: NDArray[np.float64], scalars: Scalars, groups: Mapping[int, int]) -> int:
    """The group with whose members a newcomer's list agrees best on the average."""
    members: dict[int, list[NDArray[np.float64]]] = {}
    for device, group in groups.items():
        if device in scalars:
            members.setdefault(group, []).append(scalars[device])
    means = {
        group: float(agreement([own, *lists])[0, 1:].mean())
        for group, lists in sorted(members.items())
    }
    return max(means, key=lambda group: means[group])


def _normalized(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    lengths: NDArray[np.float64] = np.where(norms > 0, norms, 1.0)
    return rows / lengths
