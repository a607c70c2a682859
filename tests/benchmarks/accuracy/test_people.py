"""People's accuracy beside references; a prior fitted by EM helps if slopes differ."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tiny_models import save_model

from benchmarks.accuracy import people
from benchmarks.accuracy.people_curves import curve_table, curves, draw_curves, groups
from benchmarks.accuracy.people_features import remembered_rows
from benchmarks.accuracy.people_references import Person, accuracies, references
from benchmarks.accuracy.prior_by_em import fitted_by_em
from benchmarks.accuracy.rater_sets import RATER_SETS, Row, kept
from samara.client.forward import readout
from samara.client.personal.softmax_fit import Examples

TASK = """
name = "loved"
text = "{text}"
question = " It was {word}."
words = ["bad", "good"]
labels = [0, 1]
metric = "accuracy"
"""


def examples_of(random: np.random.Generator, count: int, slopes: np.ndarray) -> Examples:
    """Return examples whose labels follow a slope of the user."""
    features = random.normal(size=(count, len(slopes)))
    chance = 1 / (1 + np.exp(-features @ slopes))
    labels = (random.random(count) < chance).astype(np.int64)
    return Examples(np.zeros((count, 2)), labels, features)


def people_with(slope: float, count: int = 12) -> list[Person]:
    random = np.random.default_rng(0)
    found = []
    for _ in range(count):
        own = random.normal(size=4) * slope
        parts = [examples_of(random, size, own) for size in (40, 10, 200)]
        texts = [[f"word{int(x > 0)}" for x in part.features[:, 0]] for part in parts]
        found.append(Person(parts, texts))
    return found


def test_a_prior_by_em_helps_where_people_have_slopes_of_their_own() -> None:
    with_slopes, useful = fitted_by_em(people_with(2.0))
    without, useless = fitted_by_em(people_with(0.0))
    alone, whole = (np.mean(values) for values in with_slopes.values())
    assert useful["EM gain"] > useful["EM error"] > 0
    assert whole > alone + 0.1
    assert useless["EM gain"] < useless["EM error"]
    alone, whole = (np.mean(values) for values in without.values())
    assert abs(whole - alone) < 0.05


def test_references_answer_by_what_they_know() -> None:
    random = np.random.default_rng(1)
    group = []
    for user in range(8):
        parts = []
        for size in (30, 10, 50):
            part = examples_of(random, size, np.array([3.0, 0, 0]))
            parts.append(part._replace(labels=part.labels if user else np.ones(size, np.int64)))
        texts = [[f"text {int(x > 0)}" for x in part.features[:, 0]] for part in parts]
        group.append(Person(parts, texts))
    found = {name: np.array(values) for name, values in references(group).items()}
    assert found["majority"][0] in (0.0, 1.0)
    assert found["common probe"][1:].mean() > 0.75
    assert found["common probe + intercepts"][0] > found["common probe"][0]
    assert found["pooled, then private"][0] > 0.9


def test_a_user_without_test_examples_has_no_accuracy() -> None:
    found = accuracies(np.array([True, False]), np.array([0, 0]), 2)
    assert found[0] == 0.5
    assert np.isnan(found[1])


def test_users_are_averaged_over_the_splits_in_which_they_have_test_examples() -> None:
    rows = [
        {"accuracy": {"global": [0.5, None, None]}},
        {"accuracy": {"global": [1.0, 0.25, None]}},
    ]
    assert people.by_user(rows)["global"].tolist() == [0.75, 0.25]


def write_set(folder: Path) -> None:
    folder.mkdir()
    random = np.random.default_rng(0)
    lines = []
    for user in range(4):
        for text in random.permutation(30)[:20].tolist():
            words = "a warm , kind film" if text % 2 else "the cold , rude meal"
            label = int((text % 2 == 1) != (user == 3))
            record = {"user": f"u{user}", "text": f"{words} {text}", "label": label}
            lines.append(json.dumps(record) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    (folder / "task.toml").write_text(TASK)


@pytest.mark.slow
def test_a_set_is_measured_and_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_set(tmp_path / "loved")
    model = save_model(tmp_path / "model", "bert")
    command = ["--sets", str(tmp_path / "loved"), "--model", str(model)]
    command += ["--out", str(tmp_path / "out"), "--seeds", "0", "--set", "rounds=3"]
    people.main(command)
    file = tmp_path / "out" / "people.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["split"] for row in rows] == ["random", "text"]
    for row in rows:
        methods = set(row["accuracy"])
        assert {*people.COLUMNS, *people.ALONE, *people.POOLED} <= methods
        assert {len(values) for values in row["accuracy"].values()} == {4}
    printed = capsys.readouterr().out
    assert "loved, text: 4 users, 1 splits" in printed
    people.main(command)
    assert len(file.read_text().splitlines()) == 2


def test_a_curve_has_the_users_that_have_its_last_number_of_examples(tmp_path: Path) -> None:
    """Ten of 14 users have 40 examples, and two have no test examples."""
    random, slopes = np.random.default_rng(0), np.array([8.0, 0, 0])
    sizes = [(40, 50)] * 10 + [(12, 50)] * 2 + [(40, 0)] * 2
    group = [
        Person([examples_of(random, size, slopes) for size in (own, 5, test)], [[], [], []])
        for own, test in sizes
    ]
    found = curves(group)
    by_most = groups(found)
    assert {most: len(own["personalized"]) for most, own in by_most.items()} == {
        10: 12,
        20: 10,
        40: 10,
    }
    personalized = by_most[40]["personalized"]
    assert personalized.shape == (10, 4)
    assert personalized[:, -1].mean() > personalized[:, 0].mean() + 0.05
    assert curve_table(found, "a set").row_count == 2 + 3 + 4
    draw_curves({"a set": found}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_text_goes_through_the_model_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.accuracy import people_features
    from samara.shared.model.scorers import Prompt

    asked = []

    def compute(engine: object, prompts: list[Prompt], micro_batch: int) -> np.ndarray:
        asked.append([prompt.sequences[0][0] for prompt in prompts])
        return np.array([[float(prompt.sequences[0][0])] for prompt in prompts], np.float32)

    monkeypatch.setattr(people_features, "_COMPUTE", compute)
    monkeypatch.setattr(readout, "run_base", compute)
    one, two, three = (Prompt(((number,),), ((0,),)) for number in (1, 2, 3))
    with remembered_rows(tmp_path / "rows.npz") as rows:
        assert readout.run_base(cast(Any, None), [one, two, one], 8)[:, 0].tolist() == [1, 2, 1]
        rows.write()
    assert readout.run_base is compute
    with remembered_rows(tmp_path / "rows.npz"):
        assert readout.run_base(cast(Any, None), [three, two], 8)[:, 0].tolist() == [3, 2]
    assert asked == [[1, 2], [3]]


def test_sources_are_read_as_users_texts_and_labels(tmp_path: Path) -> None:
    record = {
        "text": "a tweet",
        "annotators": "Ann1,Ann2",
        "annotations": "0,1",
        "other_info": {"domain": "Elections2020"},
    }
    other = record | {"text": "another", "other_info": {"domain": "BLM"}}
    (tmp_path / "MD-Agreement_train.json").write_text(json.dumps({"1": record, "2": other}))
    reply = {"lang": "en", "text": {"post": "p", "reply": "r"}, "annotations": {"Ann3": "1"}}
    foreign = reply | {"lang": "de"}
    (tmp_path / "MP_dev.json").write_text(json.dumps({"1": reply, "2": foreign}))
    for name in ("MD-Agreement_dev", "MD-Agreement_test", "MP_test"):
        (tmp_path / f"{name}.json").write_text("{}")
    (tmp_path / "popquorn_offensiveness").mkdir()
    line = json.dumps({"user": "u0", "text": "t", "label": 2})
    (tmp_path / "popquorn_offensiveness" / "all.jsonl").write_text(line + "\n")
    found = {name: list(its.read(tmp_path)) for name, its in RATER_SETS.items()}
    assert found["md-agreement"] == [Row("Ann1", "a tweet", 0), Row("Ann2", "a tweet", 1)]
    assert found["multipico"] == [Row("Ann3", "p\nReply: r", 1)]
    assert found["popquorn"] == [Row("u0", "t", 1)]


def test_people_with_few_rows_are_left_out() -> None:
    rows = [Row("much", f"text {number}", 0) for number in range(30)] + [Row("little", "text 1", 1)]
    assert {row.user for row in kept(rows)} == {"much"}
    assert len(kept(rows)) == 30
