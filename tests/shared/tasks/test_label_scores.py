import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samara.shared.errors import TaskError
from samara.shared.tasks.catalog import load_task
from samara.shared.tasks.kinds import ClassificationTask, GenerationTask
from samara.shared.tasks.label_scores import Confusion, auc, cross_entropy, evaluation_column
from samara.shared.tasks.metrics import (
    answer_metric,
    exact_match,
    label_metric,
    normalize_answer,
    token_f1,
)
from samara.shared.tasks.objectives import (
    ObjectiveName,
    minus_answer_metric,
    minus_label_metric,
    negative_log_likelihood,
    objective_for,
)

SCORES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=5),
    elements=st.floats(-100, 100, width=32),
)
COUNTS = hnp.arrays(np.int64, (3, 3), elements=st.integers(0, 50))


def test_cross_entropy_of_known_scores() -> None:
    scores = np.log(np.array([[[0.5, 0.5], [0.2, 0.8]], [[0.9, 0.1], [0.4, 0.6]]], np.float32))
    labels = np.array([0, 1])
    expected = [-(math.log(0.5) + math.log(0.8)) / 2, -(math.log(0.9) + math.log(0.6)) / 2]
    losses = cross_entropy(scores, labels)
    assert losses.dtype == np.float64
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@given(SCORES, st.integers(0, 4), st.floats(-1000, 1000, width=16))
def test_cross_entropy_ignores_what_all_labels_share(
    scores: np.ndarray, label: int, shift: float
) -> None:
    labels = np.full(scores.shape[1], label % scores.shape[2])
    exact = scores.astype(np.float64)
    shifted = cross_entropy(exact + shift, labels)  # type: ignore[arg-type]
    np.testing.assert_allclose(shifted, cross_entropy(scores, labels), atol=1e-9)


@given(SCORES)
def test_cross_entropy_does_not_depend_on_the_order_in_memory(scores: np.ndarray) -> None:
    labels = np.arange(scores.shape[1]) % scores.shape[2]
    label_by_label = np.ascontiguousarray(scores.swapaxes(1, 2)).swapaxes(1, 2)
    before = scores.copy()
    np.testing.assert_array_equal(
        cross_entropy(label_by_label, labels), cross_entropy(scores, labels)
    )
    np.testing.assert_array_equal(scores, before)


@given(SCORES)
def test_probabilities_of_all_labels_sum_to_one(scores: np.ndarray) -> None:
    one_row = scores[:, :1]
    losses = [cross_entropy(one_row, np.array([label])) for label in range(scores.shape[2])]
    np.testing.assert_allclose(np.exp(-np.stack(losses)).sum(axis=0), 1, rtol=1e-12)


def test_cross_entropy_of_extreme_scores_stays_finite_and_exact() -> None:
    scores = np.array([[[3e38, -3e38]], [[1e4, 0.0]]], np.float32)
    np.testing.assert_allclose(cross_entropy(scores, np.array([1])), [6e38, 1e4], rtol=1e-6)
    np.testing.assert_array_equal(cross_entropy(scores, np.array([0])), [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_not_finite_give_such_a_loss_for_their_point_only(bad: float) -> None:
    scores = np.zeros((2, 3, 2), np.float32)
    scores[1, 2, 0] = bad
    losses = cross_entropy(scores, np.zeros(3, np.int64))
    assert losses[0] == pytest.approx(math.log(2))
    assert not np.isfinite(losses[1])


def test_confusion_counts_true_labels_in_rows() -> None:
    confusion = Confusion.from_predictions(np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 2, 0]), 3)
    np.testing.assert_array_equal(confusion.counts, [[1, 1, 0], [0, 1, 0], [1, 0, 1]])
    assert confusion.counts.dtype == np.int64
    assert confusion.examples == 5
    assert confusion.accuracy == pytest.approx(3 / 5)
    assert confusion.macro_f1 == pytest.approx((2 / 4 + 2 / 3 + 2 / 3) / 3)


def test_macro_f1_leaves_out_labels_that_never_occur() -> None:
    confusion = Confusion.from_predictions(np.array([0, 1, 1]), np.array([0, 1, 1]), 5)
    assert confusion.macro_f1 == 1.0


def test_macro_f1_of_a_label_without_hit_is_zero() -> None:
    confusion = Confusion.from_predictions(np.array([0, 0, 0]), np.array([0, 0, 1]), 3)
    assert confusion.macro_f1 == pytest.approx((4 / 5 + 0) / 2)


def test_nothing_counted_is_not_a_number() -> None:
    nothing = np.array([], np.int64)
    empty = Confusion.from_predictions(nothing, nothing, 2)
    assert empty.examples == 0
    assert math.isnan(empty.accuracy)
    assert math.isnan(empty.macro_f1)
    assert (empty + Confusion.from_predictions(np.array([1]), np.array([1]), 2)).accuracy == 1.0


@given(hnp.arrays(np.int64, (2, 20), elements=st.integers(0, 3)), st.integers(0, 20))
def test_confusions_of_parts_add_up_to_that_of_the_whole(values: np.ndarray, cut: int) -> None:
    labels, predictions = values
    parts = Confusion.from_predictions(
        labels[:cut], predictions[:cut], 4
    ) + Confusion.from_predictions(labels[cut:], predictions[cut:], 4)
    np.testing.assert_array_equal(
        parts.counts, Confusion.from_predictions(labels, predictions, 4).counts
    )
    assert parts.accuracy == np.mean(labels == predictions)


@given(COUNTS, st.permutations(range(3)))
def test_metrics_do_not_depend_on_the_order_of_labels(counts: np.ndarray, order: list[int]) -> None:
    counts[0, 0] += 1
    before, after = Confusion(counts), Confusion(counts[np.ix_(order, order)])
    assert 0 <= before.macro_f1 <= 1
    assert after.macro_f1 == pytest.approx(before.macro_f1)
    assert after.accuracy == before.accuracy


def test_counts_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="1 labels for 2 predictions"):
        Confusion.from_predictions(np.array([0]), np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="a label lies outside 0 to 1"):
        Confusion.from_predictions(np.array([2]), np.array([0]), 2)
    with pytest.raises(ValueError, match="a prediction lies outside 0 to 1"):
        Confusion.from_predictions(np.array([0]), np.array([-1]), 2)
    with pytest.raises(ValueError, match="different numbers of labels"):
        Confusion(np.zeros((2, 2), np.int64)) + Confusion(np.zeros((3, 3), np.int64))


def three_labels(**changes: object) -> ClassificationTask:
    content = {
        "name": "t",
        "text": "{text}",
        "question": " {word}",
        "words": ["a", "b", "c"],
        "labels": [0, 1, 2],
    }
    return ClassificationTask.model_validate(content | changes)


def test_scores_that_a_row_does_not_have_add_nothing_to_its_loss() -> None:
    short = np.array([[[1.0, 2.0]]], np.float32)
    padded = np.array([[[1.0, 2.0, -np.inf]]], np.float32)
    assert cross_entropy(padded, np.array([0])) == cross_entropy(short, np.array([0]))


def test_likelihood_reads_what_is_right_alone() -> None:
    scores = np.array([[[-1.0, -9.0], [-8.0, -3.0]], [[-5.0, np.nan], [-np.inf, -1.0]]], np.float32)
    losses = negative_log_likelihood(scores, np.array([0, 1]))
    assert losses.dtype == np.float64
    np.testing.assert_array_equal(losses, [2.0, 3.0])


@given(hnp.arrays(np.int64, (2, 12), elements=st.integers(0, 2)))
def test_metrics_as_objectives_are_minus_the_metric_of_what_scores_highest(
    values: np.ndarray,
) -> None:
    labels, predictions = values
    scores = np.eye(3, dtype=np.float32)[np.stack([predictions, labels])]
    confusion = Confusion.from_predictions(labels, predictions, 3)
    for task, value in [
        (three_labels(), confusion.accuracy),
        (three_labels(metric="macro-f1"), confusion.macro_f1),
        (three_labels(metric="f1", positive=2), np.nan_to_num(confusion.f1(2))),
        (three_labels(metric="matthews"), confusion.matthews),
        (three_labels(metric="pearson"), confusion.pearson),
    ]:
        perfect = label_metric(task, Confusion.from_predictions(labels, labels, 3))
        np.testing.assert_allclose(minus_label_metric(task)(scores, labels), [-value, -perfect])
        least = -1 if task.metric in ("matthews", "pearson") else 0
        assert least <= value <= perfect + 1e-12 <= 1 + 1e-12


def test_f1_of_a_label_counts_its_own_hits_and_misses_only() -> None:
    confusion = Confusion(np.array([[5, 1, 0], [2, 3, 0], [0, 0, 0]]))
    assert confusion.f1(1) == pytest.approx(2 * 3 / (5 + 4))
    assert math.isnan(confusion.f1(2))
    assert label_metric(three_labels(metric="f1", positive=2), confusion) == 0
    nothing = Confusion(np.zeros((3, 3), np.int64))
    assert math.isnan(label_metric(three_labels(metric="f1", positive=2), nothing))


def test_matthews_correlation_is_that_of_the_four_counts() -> None:
    counts = np.array([[90, 10], [30, 70]])
    by_hand = (90 * 70 - 10 * 30) / math.sqrt(100 * 100 * 120 * 80)
    assert Confusion(counts).matthews == pytest.approx(by_hand)
    assert Confusion(counts[:, ::-1]).matthews == pytest.approx(-by_hand)
    assert Confusion(np.array([[0, 5], [0, 7]])).matthews == 0  # one label for all
    assert math.isnan(Confusion(np.zeros((2, 2), np.int64)).matthews)


@given(hnp.arrays(np.int64, (2, 20), elements=st.integers(0, 3)))
def test_pearson_correlation_is_that_of_the_labels(values: np.ndarray) -> None:
    labels, predictions = values
    deviations = [each - each.mean() for each in (labels, predictions)]
    norms = math.sqrt(math.prod(float(each @ each) for each in deviations))
    expected = float(deviations[0] @ deviations[1]) / norms if norms else 0.0
    found = Confusion.from_predictions(labels, predictions, 4).pearson
    assert found == pytest.approx(expected, abs=1e-9)
    assert math.isnan(Confusion(np.zeros((2, 2), np.int64)).pearson)


@given(hnp.arrays(np.int64, (2, 20), elements=st.integers(0, 3)))
def test_matthews_correlation_is_that_of_indicators(values: np.ndarray) -> None:
    labels, predictions = values
    true, predicted = (np.eye(4)[each] - np.eye(4)[each].mean(0) for each in (labels, predictions))
    norms = math.sqrt((true**2).sum() * (predicted**2).sum())
    expected = (true * predicted).sum() / norms if norms else 0.0
    found = Confusion.from_predictions(labels, predictions, 4).matthews
    assert found == pytest.approx(expected, abs=1e-9)


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(2, 12), st.just(2)), elements=st.integers(-3, 3)),
    st.data(),
)
def test_the_auc_is_the_share_of_pairs_in_order(scores: np.ndarray, data: st.DataObject) -> None:
    some = st.lists(st.integers(0, 1), min_size=len(scores), max_size=len(scores))
    labels = np.array(data.draw(some.filter(lambda drawn: len(set(drawn)) == 2)))
    leads = scores[:, 1] - scores[:, 0]
    differences = leads[labels == 1][:, None] - leads[labels == 0]
    wanted = np.mean((1 + np.sign(differences)) / 2)
    assert auc(scores, labels) == pytest.approx(wanted)
    assert auc(scores + np.array([2, -5], np.float32), labels) == pytest.approx(wanted)

    assert evaluation_column("", scores, labels).auc == auc(scores, labels)


def test_there_is_no_auc_of_one_label() -> None:
    assert math.isnan(auc(np.zeros((3, 2), np.float32), np.ones(3, np.int64)))
    assert evaluation_column("", np.zeros((3, 2), np.float32), np.ones(3, np.int64)).auc is None
    assert evaluation_column("", np.zeros((3, 3), np.float32), np.arange(3)).auc is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_point_without_sound_scores_has_no_metric(bad: float) -> None:
    scores = np.zeros((2, 3, 3), np.float32)
    scores[1, 2, 0] = bad
    losses = minus_label_metric(three_labels())(scores, np.zeros(3, np.int64))
    assert losses[0] == -1
    assert math.isnan(losses[1])


def test_goals_that_a_kind_does_not_have() -> None:
    qa = load_task("squad")
    assert objective_for(qa, "likelihood") is negative_log_likelihood
    assert objective_for(load_task("copa"), "cross-entropy") is cross_entropy
    labels, scores = np.array([1]), np.array([[[0.0, 1.0]]], np.float32)
    assert objective_for(load_task("copa"), "metric")(scores, labels) == [-1]
    wrong: list[tuple[ObjectiveName, str]] = [
        ("metric", "needs decoded answers"),
        ("cross-entropy", "likelih"),
    ]
    for goal, message in wrong:
        with pytest.raises(TaskError, match=message):
            objective_for(qa, goal)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("The  Eiffel-Tower!", ["an eiffeltower"], 1, 1),
        ("in Paris", ["Paris", "the city of Paris"], 0, 2 / 3),
        ("Rome", ["Paris"], 0, 0),
        ("the", [""], 1, 1),
        ("", ["Paris"], 0, 0),
        ("Paris", ["the"], 0, 0),
        ("no no no", ["no no yes"], 0, 2 / 3),
        ("theatre", ["atre"], 0, 0),
    ],
)
def test_answers_are_compared_by_their_words(
    prediction: str, answers: list[str], exact: float, f1: float
) -> None:
    assert exact_match(prediction, answers) == exact
    assert token_f1(prediction, answers) == pytest.approx(f1)


@given(st.text(max_size=30), st.text(max_size=30))
def test_agreement_of_answers_is_symmetric_and_full_with_oneself(one: str, other: str) -> None:
    assert exact_match(one, [one]) == token_f1(one, [one]) == 1
    assert token_f1(one, [other]) == token_f1(other, [one])
    assert exact_match(one, [other]) <= token_f1(one, [other]) <= 1
    assert normalize_answer(normalize_answer(one)) == normalize_answer(one)
    assert token_f1(one, [other, one]) == 1


def test_a_metric_of_answers_is_the_mean_over_rows() -> None:
    task = load_task("squad")
    assert isinstance(task, GenerationTask)
    answers = [["Paris"], ["Rome", "old Rome"]]
    points = [["in Paris", "old rome"], ["", "Rome."]]
    np.testing.assert_allclose(minus_answer_metric(task, points, answers), [-5 / 6, -1 / 2])
    exact = task.model_copy(update={"metric": "exact-match"})
    np.testing.assert_allclose(minus_answer_metric(exact, points, answers), [-1 / 2, -1 / 2])
    assert math.isnan(answer_metric(task, [], []))
