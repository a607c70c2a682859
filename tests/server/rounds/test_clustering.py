"""Clients are clustered by scalars alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samara.server.rounds.clustering import (
    cluster_clients,
    cosine_similarities,
    distinctive_parts,
    nearest_cluster,
)
from samara.shared.settings.config import RunConfig


def lists(groups: list[int], noise: float, seed: int = 0, n: int = 64) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    common, tastes = rng.normal(size=n), rng.normal(size=(max(groups) + 1, n))
    return {
        client: (1 + client) * (common + tastes[group] + noise * rng.normal(size=n))
        for client, group in enumerate(groups)
    }


@pytest.mark.parametrize("groups", [[0, 1] * 4, [0, 0, 1, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 1]])
def test_groups_are_found_under_noise_and_at_any_length(groups: list[int]) -> None:
    scalars = lists(groups, noise=0.5)
    found = cluster_clients(scalars, max(groups) + 1)
    assert [found[client] for client in range(len(groups))] == groups
    for client, own in lists(groups, noise=0.5, seed=0).items():
        others = {d: s for d, s in scalars.items() if d != client}
        known = {d: g for d, g in found.items() if d != client}
        if groups[client] in known.values():
            assert nearest_cluster(own, others, known) == groups[client]


@given(st.permutations(range(8)))
def test_the_order_of_devices_does_not_matter(order: list[int]) -> None:
    scalars = lists([0, 1] * 4, noise=0.5)
    shuffled = {client: scalars[client] for client in order}
    assert cluster_clients(shuffled, 2) == cluster_clients(scalars, 2)


def test_opposite_tastes_disagree() -> None:
    taste = np.random.default_rng(0).normal(size=32)
    cosines = cosine_similarities(np.stack([taste, -2 * taste, 3 * taste, np.zeros(32)]))
    np.testing.assert_allclose(cosines[0], [1, -1, 1, 0], atol=1e-12)


def test_few_devices_are_one_group_each() -> None:
    assert cluster_clients(lists([0], noise=1), 2) == {0: 0}
    assert cluster_clients(lists([0, 1], noise=1), 5) == {0: 0, 1: 1}


@pytest.mark.parametrize("held", [(1.0, 1.0), (1.0, 0.1), (1.0, 0.0)])
def test_what_all_say_of_a_label_hides_nothing(held: tuple[float, float]) -> None:
    """All clients share a large part in each label's step; every second client swaps the labels.

    Half of the clients have few or no examples of a label; their scalars are smaller, or zero.
    """
    rng = np.random.default_rng(0)
    loud, taste = rng.normal(size=(2, 2, 32)) * [[[20.0]], [[1.0]]]
    scalars = {}
    for client in range(8):
        amounts = np.array((held, held[::-1], (1, 1), (1, 1))[client // 2])[:, None]
        kind = 1 if client % 2 else -1
        own = (1 + rng.random((2, 1))) * loud + kind * taste
        scalars[client] = amounts * (own + 0.3 * rng.normal(size=(2, 32)) / np.sqrt(amounts + 1e-9))
    assert list(cluster_clients(scalars, 2).values()) == [0, 1] * 4
    cosines = cosine_similarities(distinctive_parts(list(scalars.values())))
    alike = np.equal.outer(np.arange(8) % 2, np.arange(8) % 2)
    assert cosines[alike].mean() > cosines[~alike].mean()
    for client, own in scalars.items():
        others = {other: at for other, at in scalars.items() if other != client}
        assert nearest_cluster(own, others, {other: other % 2 for other in others}) == client % 2


@given(
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from(["central", "forward"]),
)
def test_finding_clusters_costs_no_more_than_the_rounds_that_it_takes(
    rounds: int, steps: int, queries: int, batch: int, differences: str
) -> None:
    settings = {"steps": steps, "queries": queries, "batch": batch, "differences": differences}
    cluster = {"method": "cluster", "rounds": 41, "cohort.clustering-rounds": rounds}
    config = RunConfig.of(settings | cluster, "test")
    asked, examples = config.terms.clustering_steps_and_batch()
    losses = queries + 1 if differences == "forward" else 2 * queries
    budget = rounds * steps * losses * batch
    spent = asked * (queries + 1) * examples
    assert min(asked, examples) >= 1
    assert budget / 2 < spent <= budget
