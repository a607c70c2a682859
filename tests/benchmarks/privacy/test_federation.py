"""The federation of the privacy measurements: its reports and its rounds are those of a run."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.privacy.accuracy import (
    FED_AVG,
    ZEROTH_ORDER,
    chosen_factor,
    local_rate,
    local_updates,
    run_fed_avg,
    table,
)
from benchmarks.privacy.federation import (
    Federation,
    make_config,
    noised_sum,
    open_aggregator,
    public_norms,
    still_instruction,
    take_local_steps,
    vector_reports,
)
from benchmarks.privacy.linear_texts import Texts
from benchmarks.privacy.texts import groups_of, joined, read_texts
from samara.client.training.local_steps import take_local_steps as product_steps
from samara.client.training.model_runtime import load_run
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.frames.instructions import Split
from samara.shared.privacy.vector import encode_vector, read_sum
from samara.shared.replay import zero_state

ELEMENTS = 12


def made(clients: int, each: int, seed: int = 0) -> list[Texts]:
    """Clients whose labels follow one linear rule."""
    rng = np.random.default_rng(seed)
    rule = np.random.default_rng(99).standard_normal(ELEMENTS)
    gradients = rng.standard_normal((clients * each, ELEMENTS))
    texts = Texts(gradients, np.zeros(len(gradients)), (gradients @ rule > 0).astype(np.int64))
    return groups_of(texts, each)


def test_reports_are_those_of_a_run_of_the_embedded_model(tmp_path: Path) -> None:
    settings = {"data.limit": 12, "threads": 1, "steps": 3, "queries": 4, "data.clients": 2}
    config = make_config(settings)
    texts = read_texts({"data.limit": 12}, 2, tmp_path / "texts.npz")[Split.TRAIN]
    run = load_run(config)
    layout = run.runtime.layout
    assert layout.size == texts[0].gradients.shape[1]
    asked = config.terms.instruction(
        *(bytes(8), 1, layout.hash, bytes(32)), learning_rate=0.5, clip=0.0, curvature_every=2
    )
    own = take_local_steps(texts, asked, np.zeros(layout.size))
    for client, report in enumerate(own):
        data = run.data.share_of(client, 2)
        expected = product_steps(run.runtime, data, asked, zero_state(layout.size))
        assert (report.token, report.client, report.examples) == (
            *(expected.token, expected.client, expected.examples),
        )
        np.testing.assert_allclose(report.gradients, expected.gradients, atol=2e-3)
        assert report.mean_loss == pytest.approx(expected.mean_loss, abs=1e-4)
    again = read_texts({}, 2, tmp_path / "texts.npz")[Split.TRAIN]
    np.testing.assert_array_equal(again[1].gradients, texts[1].gradients)


def test_a_federation_learns_and_one_with_much_noise_does_not(tmp_path: Path) -> None:
    clients, test = made(6, 20), joined(made(1, 300, seed=1))
    own = {"rounds": 12, "steps": 1, "queries": 32}
    plain = Federation(make_config(own), clients, tmp_path)
    plain.run()
    assert plain.epsilon is None
    assert test.loss(plain.numbers) < 0.8 * np.log(2)
    clip = float(np.median(public_norms(joined(made(4, 20, seed=2)), 20, make_config(own))))
    private = {"privacy.mode": "central", "privacy.epsilon": 0.05, "privacy.clip": clip}
    noised = Federation(make_config({**own, **private}), clients, tmp_path)
    noised.run()
    assert noised.epsilon == pytest.approx(0.05)
    assert len(read_releases(tmp_path / RELEASES_FILE)) == 12
    assert test.loss(noised.numbers) > test.loss(plain.numbers)


def test_where_clients_add_the_noise_a_run_has_all_of_it(tmp_path: Path) -> None:
    clients, own = made(4, 20), {"rounds": 3, "steps": 1, "queries": 8, "cohort.minimum": 4}
    private = {"privacy.mode": "distributed", "privacy.honest-share": 0.5, "privacy.clip": 1.0}
    config = make_config({**own, **private, "privacy.epsilon": 1.0})
    run = Federation(config, clients, tmp_path)
    run.run()
    assert run.epsilon == pytest.approx(1.0)
    needed = config.terms.privacy.mechanism.noise_multiplier  # type: ignore[union-attr]
    releases = read_releases(tmp_path / RELEASES_FILE)
    # that of two clients is enough, and four have added it
    assert [one.sums[0].noise_multiplier for one in releases] == pytest.approx(
        [needed * 2**0.5] * 3
    )
    assert run.rates[0] == 0


def test_a_noised_sum_without_noise_is_a_release_without_noise(tmp_path: Path) -> None:
    clients = made(3, 5)
    own = {"rounds": 1, "steps": 1, "queries": 8, "privacy.mode": "central"}
    config = make_config({**own, "privacy.epsilon": 1.0, "privacy.clip": 0.5})
    asked = still_instruction(config, 1)
    reports = take_local_steps(clients, asked, np.zeros(ELEMENTS))
    replies = vector_reports(reports, 0.5)
    silent = open_aggregator(
        config, tmp_path, ELEMENTS, noise=lambda count, sigma: np.zeros(count, object)
    )
    silent.aggregate(asked, replies, 1, 3)
    (release,) = read_releases(tmp_path / RELEASES_FILE)
    vectors = [encode_vector(r.gradients, r.mean_loss, r.curvature, 0.5) for r in reports]
    total = noised_sum(vectors, 0.0, 0.5)
    np.testing.assert_array_equal(total.gradients, read_sum(release.sums[0].total, 0.5).gradients)
    assert total.count == 3
    noised = noised_sum(vectors, 10.0, 0.5)
    assert np.std(noised.gradients - total.gradients) == pytest.approx(5.5, rel=0.9)


def test_local_updates_are_gradient_steps_of_each_client() -> None:
    clients = [*made(2, 7), *made(1, 4, seed=3)]
    start, rate = np.full(ELEMENTS, 0.1), local_rate(joined(clients))
    for own, update in zip(clients, local_updates(clients, start, rate), strict=True):
        moved = start
        for _ in range(4):
            moved = moved - rate * own.slope(moved)
        np.testing.assert_allclose(start - moved, update, atol=1e-12)
        assert own.loss(start - update) < own.loss(start)


def test_fed_avg_learns_without_noise_and_not_with_much() -> None:
    clients, test = made(6, 20), joined(made(1, 300, seed=1))
    updates_of = partial(local_updates, clients, rate=local_rate(joined(clients)))
    assert test.loss(run_fed_avg(updates_of, ELEMENTS, 1.0, 1.0, 0.0)) < 0.3
    assert test.loss(run_fed_avg(updates_of, ELEMENTS, 1.0, 1.0, 100.0)) > np.log(2)


def test_the_factor_is_chosen_on_validation_and_the_table_shows_its_test_figures() -> None:
    def row(method: str, factor: float | None, seed: int, validation: float, accuracy: float):  # type: ignore[no-untyped-def]
        return {
            **{"set": "s", "clients": 8, "method": method, "epsilon": 2.0, "seed": seed},
            **{"factor": factor, "validation_loss": validation, "accuracy": accuracy},
            **{"loss": 0.5, "zero_shot": 0.7, "zero_shot_loss": 0.55},
        }

    tried = [
        row(FED_AVG, f, s, v, a)
        for f, s, v, a in (
            (1.0, 0, 0.2, 0.9),
            (1.0, 1, 0.9, 0.9),
            (0.1, 0, 0.5, 0.7),
            (0.1, 1, 0.5, 0.8),
        )
    ]
    assert chosen_factor(tried) == 0.1
    assert chosen_factor([*tried, row(FED_AVG, 0.3, 0, 0.1, 0.9)]) == 0.1  # it lacks a seed
    lines = table([row(ZEROTH_ORDER, None, 0, 0.4, 0.75), *tried]).splitlines()
    assert "| zeroth order | 2.0 | 1 | 70.0% | 75.0% ± nan | 0.500, 0.550 |  |" in lines[2]
    assert "| DP-FedAvg | 2.0 | 2 | 70.0% | 75.0% ± 7.1 | 0.500, 0.550 | 0.1 |" in lines[3]
