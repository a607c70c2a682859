"""The round of intercepts: the clients' common intercept, and their common deviation."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from false_reports import HostileApp
from federations import Settings, config_of
from helpers import layout_of
from numpy.typing import NDArray

from samara.client.personal.private_fit import CommonPrior, make_private_fit
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.personal.softmax_fit import intercept_losses
from samara.client.training.model_runtime import load_run
from samara.server.app import serve
from samara.server.rounds.aggregation import aggregate, check_report
from samara.server.rounds.common_intercept import check_excesses, common_intercept
from samara.server.rounds.evaluation import is_comparison
from samara.server.rounds.event_log import describe_event
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.server.rounds.round_answers import RoundAnswers
from samara.server.rounds.rule import Rule
from samara.server.store import LEDGER_FOLDER, METRICS_FILE, RunStore
from samara.shared.errors import ConfigError, FrameError, ReportError, TrainingError
from samara.shared.protocol.frames.instructions import Split, token_of
from samara.shared.protocol.frames.report import Report
from samara.shared.protocol.layout import Tensor
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.ledger.records import LedgerHeader
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import DenseValues, to_float32
from samara.shared.protocol.round_delta import CommonDeviation, RoundDelta
from samara.shared.tasks.contrasts import contrasts
from samara.shared.terms.intercept_round import (
    INTERCEPT_LIMIT,
    MOST_EXCESS,
    intercept_instruction,
)
from samara.simulations.engines.in_process import InProcessGrid
from samara.simulations.exports.adapter import FinishedRun, export
from samara.simulations.simulate import simulate

LIKING = (0.95, 0.9, 0.85, 0.8, 0.7, 0.55)
"""Share of positive labels of each of six raters, whatever the text."""
ROWS = 24


@pytest.fixture
def raters(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of six raters with different base rates, one of whom is a newcomer."""
    random, rows = np.random.default_rng(0), []
    for user, liking in enumerate(LIKING):
        for number in range(ROWS + 5 * user):
            sentence = f"the film was {random.choice(['good', 'bad', 'long', 'short'])} {number}"
            label = int(random.random() < liking)
            rows.append({"sentence": sentence, "label": label, "user": f"user {user}"})
    file = tmp_path / "raters.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return settings | {
        "method": "readout",
        "rounds": 2,
        "learning-rate": 0.001,
        "data.path": str(file),
        "data.partition": "user",
        "data.clients": len(LIKING),
        "adapter.layers": "top:1",
        "adapter.label-bias": True,
        "aggregation.rule": "mean",
        "cohort.newcomers": 1,
        "evaluate.every": 0,
    }


def intercept_of(folder: Path) -> DenseValues:
    """The intercept that the last round in a run's ledger adds."""
    *_, last = read_ledger(folder / LEDGER_FOLDER)
    entry, *_ = last.delta.entries
    assert isinstance(entry, DenseValues)
    return entry


def share_of_right(figures: list[tuple[float, int]]) -> float:
    shares, counts = zip(*figures, strict=True)
    return float(np.average(shares, weights=counts))


def accuracy(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    return float(np.mean(scores.argmax(axis=1) == labels))


def test_raters_with_base_rates_of_their_own(raters: Settings, tmp_path: Path) -> None:
    config = config_of(raters)
    folder = simulate(config)
    opened = FinishedRun.at(folder)
    (runtime, source), layout = load_run(config), opened.layout
    *_, before, last = verify_ledger(folder / LEDGER_FOLDER, layout)
    assert last.round == 3
    assert last.record is not None
    assert [c.client for c in last.record.delta.contributors] == [0, 1, 2, 3, 4]
    assert last.state.tobytes() == opened.global_state().tobytes()
    values, bias = intercept_of(folder), layout.label_bias
    assert bias is not None
    np.testing.assert_array_equal((last.state - before.state)[bias], values.values)
    assert not np.delete(last.state - before.state, np.r_[bias]).any()

    weights, privates, figures = [], [], {}
    for client in range(len(LIKING)):
        data = source.share_of(client, len(LIKING))
        learner = RuntimeLearner(runtime, data)
        fitted = make_private_fit(learner, config.terms, before.state)
        whole, earlier = opened.model(client), before.state + fitted
        np.testing.assert_array_equal(whole, earlier)
        test = data.tokenized(Split.TEST)
        now, then = (runtime.scores(state, test.prompts) for state in (whole, earlier))
        np.testing.assert_allclose(now, then, atol=1e-6)
        weights.append(len(data.tokenized(Split.TRAIN).labels))
        privates.append(to_float32(fitted)[bias].astype(np.float64))
        for name, state in {"before": before.state, "with": last.state, "personal": whole}.items():
            scores = runtime.scores(state, test.prompts)
            figures.setdefault(name, []).append((accuracy(scores, test.labels), len(test.labels)))
    expected = np.average(privates[:5], axis=0, weights=weights[:5])
    np.testing.assert_allclose(to_float32(values.values), expected, atol=1e-6)

    left_out = export(folder, None, tmp_path / "adapter")
    np.testing.assert_allclose(left_out["label bias"], to_float32(last.state)[bias])
    shares = {name: share_of_right(own) for name, own in figures.items()}
    labels = [source.share_of(c, 6).tokenized(Split.TEST).labels for c in range(6)]
    majority = max(np.mean(np.concatenate(labels)), 1 - np.mean(np.concatenate(labels)))
    print({**shares, "majority": majority})
    assert shares["before"] < majority - 0.2
    assert shares["with"] >= majority - 0.01


def test_private_parts_from_before_are_that_much_less(raters: Settings) -> None:
    changes = {"personal__when": "every 1 rounds", "evaluate__best": True, "evaluate__every": 1}
    config = config_of(raters, **changes)
    folder = simulate(config)
    opened = FinishedRun.at(folder)
    (runtime, source), layout = load_run(config), opened.layout
    *_, before, last = verify_ledger(folder / LEDGER_FOLDER, layout)
    assert (before.round, last.round) == (3, config.terms.intercept_round) == (3, 4)
    common = intercept_of(folder).values
    for client in (0, 5):
        learner = RuntimeLearner(runtime, source.share_of(client, len(LIKING)))
        fitted = make_private_fit(learner, config.terms, before.state)
        np.testing.assert_array_equal(
            opened.personal_state(client), fitted + before.state - last.state
        )
        records = list(read_ledger(folder / "clients" / str(client) / "personal.ledger"))
        of_bias = [record.delta.entries[-1] for record in records]
        changed = [entry.values.tolist() for entry in of_bias if isinstance(entry, DenseValues)]
        assert changed.count((-common).tolist()) == 1
    validated = [e for e in opened.result.evaluations if e.split == "validation" and e.round >= 2]
    assert [event.round for event in validated] == [2, 4, 4]


@pytest.mark.parametrize("is_masked", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_it_is_clipped_noised_and_charged_like_a_round(raters: Settings, is_masked: bool) -> None:
    config = config_of(
        raters,
        privacy__mode="distributed" if is_masked else "central",
        privacy__noise_multiplier=0.01,
        privacy__honest_share=1.0,
        privacy__clip=0.5,
        privacy__secure_aggregation=is_masked,
        seed_policy="shared",
        cohort__newcomers=0,
        cohort__minimum=3,
    )
    terms = config.terms
    assert terms.privacy is not None
    assert terms.privacy.rounds == 3
    folder = simulate(config)
    opened, (runtime, source) = FinishedRun.at(folder), load_run(config)
    *_, before, _ = verify_ledger(folder / LEDGER_FOLDER, opened.layout)
    releases = read_releases(folder / RELEASES_FILE)
    assert [release.round for release in releases] == [1, 2, 3]
    assert opened.result.rounds[-1].epsilon == pytest.approx(terms.privacy.epsilon, rel=1e-9)
    bias, clipped = opened.layout.label_bias, []
    assert bias is not None
    for client in range(len(LIKING)):
        learner = RuntimeLearner(runtime, source.share_of(client, len(LIKING)))
        own = to_float32(make_private_fit(learner, terms, before.state))[bias].astype(np.float64)
        clipped.append(own * min(1.0, INTERCEPT_LIMIT / float(np.linalg.norm(own))))
    found = to_float32(intercept_of(folder).values)
    np.testing.assert_allclose(found, np.mean(clipped, axis=0), atol=0.03)
    assert not np.allclose(found, np.mean(clipped, axis=0), atol=1e-6)


def test_a_hostile_client_moves_it_no_farther_than_the_others_allow() -> None:
    terms = config_of({}, method="readout", adapter__label_bias=True).terms
    layout = replace(layout_of(), tensors=(Tensor("label bias", 3, 1, "label bias"),))
    asked = intercept_instruction(terms, bytes(8), layout.hash, bytes(32), labels=3)
    rows = contrasts(3).astype(np.float64)
    random = np.random.default_rng(1)
    honest = [np.array([1.0, -0.4, -0.6]) + 0.1 * rows.T @ random.normal(size=2) for _ in range(6)]

    def mean_with(hostile: list[NDArray[np.float64]], rule: str) -> NDArray[np.float64]:
        reports = [
            Report(token_of(asked.encode()), client, 30, 0.0, -(rows @ own)[None].astype("f4"))
            for client, own in enumerate([*honest, *hostile])
        ]
        delta = common_intercept(aggregate(asked, reports, 1000, (), Rule(rule)), layout)
        (entry,) = delta.entries
        assert isinstance(entry, DenseValues)
        delta.check_dense_values(layout)
        return to_float32(entry.values).astype(np.float64)

    np.testing.assert_allclose(mean_with([], "mean"), np.mean(honest, axis=0), atol=1e-6)
    hostile = [np.array([-900.0, 1800.0, -900.0])]
    longest = max(float(np.linalg.norm(own)) for own in honest)
    for rule in ("median-norm", "multi-krum", "centered-clipping", "trimmed-mean", "median"):
        moved = mean_with(hostile, rule) - np.mean(honest, axis=0)
        assert np.linalg.norm(moved) < 2 * longest / 7 + 0.2, rule


def test_too_few_scalars_for_an_intercept_are_named(raters: Settings, tmp_path: Path) -> None:
    """With privacy, a report has only steps × queries numbers."""
    private = {"privacy.mode": "central", "privacy.noise-multiplier": 1.0, "queries": 1, "steps": 1}
    config = config_of(raters | private, seed_policy="shared")
    layout = replace(layout_of(), tensors=(Tensor("label bias", 3, 1, "label bias"),))
    asked = intercept_instruction(config.terms, bytes(8), layout.hash, bytes(32), labels=3)
    store = RunStore(tmp_path / "run", layout, LedgerHeader(0, bytes(8), layout.hash), 0)
    answers = RoundAnswers(config, store, None)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match=r"has 2 numbers, .* = 1; increase steps or queries"):
        answers.check_intercepts(asked, layout)
    store.close()
    with pytest.raises(ConfigError, match="prior common with privacy central"):
        config_of(raters | private, seed_policy="shared", personal__prior="common")


def excesses_of(learner: RuntimeLearner, state: NDArray[np.int64]) -> NDArray[np.float64]:
    """The excess loss of every candidate deviation on a client's examples."""
    examples = learner.training_examples(state, with_features=False)
    losses = intercept_losses(examples, contrasts(2).astype(np.float64), learner.solve)
    return np.minimum(losses - losses.min(), MOST_EXCESS)


@pytest.mark.parametrize("when", ["end", "every 1 rounds"])
def test_clients_choose_a_deviation_together(raters: Settings, when: str) -> None:
    """The newcomer, and clients with an earlier private part, use the chosen deviation too."""
    config = config_of(raters, personal__prior="common", personal__when=when)
    folder = simulate(config)
    opened, (runtime, source) = FinishedRun.at(folder), load_run(config)
    *_, before, last = verify_ledger(folder / LEDGER_FOLDER, opened.layout)
    assert last.record is not None
    chosen = last.record.delta.common_deviation
    assert chosen is not None
    lines = (folder / METRICS_FILE).read_text().splitlines()
    event = next(one for one in map(json.loads, lines) if "deviation" in one)
    assert event["deviation"] == chosen.deviation
    assert f"common deviation {chosen.deviation:g}" in describe_event(event)
    shares = [source.share_of(client, len(LIKING)) for client in range(len(LIKING))]
    learners = [RuntimeLearner(runtime, share) for share in shares]
    excesses = [excesses_of(learner, before.state) for learner in learners]
    weights = [len(share.tokenized(Split.TRAIN).labels) for share in shares]
    of_training = np.average(excesses[:5], axis=0, weights=weights[:5])
    assert chosen.index == of_training.argmin()
    assert any(own.argmin() != chosen.index for own in excesses)
    for client, learner in enumerate(learners):
        prior = CommonPrior(deviation=chosen.deviation)
        fitted = make_private_fit(learner, config.terms, before.state, prior)
        np.testing.assert_array_equal(opened.model(client), before.state + fitted)
        alone = make_private_fit(learner, config.terms, before.state)
        assert (alone == fitted).all() == (excesses[client].argmin() == chosen.index)


def test_a_client_whose_excess_losses_are_out_of_range_is_refused(
    raters: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(raters, personal__prior="common", aggregation__rule="median-norm")
    folder = serve(config, InProcessGrid(HostileApp({1}, "-g"), len(LIKING), config.flat()))
    *_, last = FinishedRun.at(folder).result.rounds
    assert (list(last.refused), last.reports) == ([1], 4)
    assert "client 1 reports an excess loss below 0 or above 1" in caplog.text
    *_, record = read_ledger(folder / LEDGER_FOLDER)
    assert record.delta.common_deviation is not None


@pytest.mark.parametrize("rule", ["mean", "median-norm", "trimmed-mean"])
def test_one_client_does_not_choose_alone(rule: str) -> None:
    own = {"method": "readout", "adapter.label-bias": True}
    terms = config_of(own, personal__prior="common").terms
    layout = replace(layout_of(), tensors=(Tensor("label bias", 3, 1, "label bias"),))
    asked = intercept_instruction(terms, bytes(8), layout.hash, bytes(32), labels=3)
    honest = [0.5, -0.3, 0.4, 0.3, 0.0, 0.2, 0.4]
    hostile = [0.5, -0.3, 0.0, 1.0, 1.0, 1.0, 1.0]
    reports = [
        Report(token_of(asked.encode()), client, 30, 0.0, -np.array([own], np.float32))
        for client, own in enumerate([*[honest] * 6, hostile])
    ]
    for report in reports:
        check_report(report, asked)
        check_excesses(report, 5)
    delta = common_intercept(aggregate(asked, reports, 1000, (), Rule(rule)), layout, 5)
    assert delta.common_deviation == CommonDeviation(2)
    RoundDelta.decode(delta.encode()).check_dense_values(layout)
    for wrong in (-0.01, 1.01):
        with pytest.raises(ReportError, match="client 0 reports an excess loss"):
            check_excesses(replace(reports[0], gradients=np.full((1, 7), -wrong, "f4")), 5)
    with pytest.raises(ReportError, match="reports 1 × 2 scalars"):
        check_report(replace(reports[0], gradients=np.zeros((1, 2), "f4")), asked)
    with pytest.raises(FrameError, match="not finite"):
        Report.decode(replace(reports[0], gradients=np.full((1, 7), np.nan, "f4")).encode())


def test_a_comparison_of_personal_models_is_the_end() -> None:
    columns = {
        "validation": (["global"], ["global", "personalized"]),
        "test": (["global"],),
    }
    before = [
        {"event": "evaluation", "split": split, "columns": names}
        for split, each in columns.items()
        for names in each
    ]
    assert not any(map(is_comparison, [*before, {"event": "round"}]))
    compared = {"event": "evaluation", "split": "test", "columns": ["global", "personalized"]}
    assert is_comparison(compared)
    assert is_comparison(compared | {"split": "validation", "columns": ["personalized"]})
