"""Runs that may be compared, their comparison, and its description."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results import result_of, write_result
from rich.console import Console

from samara.shared.errors import SamaraError
from samara.simulations.comparison.comparison import Comparison, compare_runs
from samara.simulations.comparison.tables import csv_of, render_comparison
from samara.simulations.comparison.verdict import Verdict

Compare = Callable[..., Comparison]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Write results to the folders 0, 1, …, and compare them."""

    def of(*results: dict[str, Any]) -> Comparison:
        folders = [
            write_result(tmp_path / str(index), result) for index, result in enumerate(results)
        ]
        return compare_runs(folders)

    return of


def said(comparison: Comparison) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    for part in render_comparison(comparison):
        console.print(part, "")
    return console.export_text()


def test_a_run_alone_is_tested_against_everything_it_has(compare: Compare) -> None:
    comparison = compare(result_of(clients=30))
    (title,) = comparison.by_title()
    assert title == "personalized against"
    names = ["majority", "base rate", "zero-shot", "label bias", "local-only", "global"]
    assert list(comparison.by_title()[title]) == names
    assert (comparison.main.condition.name, comparison.main.against.name) == (
        "personalized",
        "global",
    )
    assert comparison.main.quality.low < 0.08 < comparison.main.quality.high
    assert comparison.answer().startswith("personalized serves clients better than global: +")


def test_the_headline_is_the_gain_over_the_better_of_global_and_base_rate(compare: Compare) -> None:
    result = result_of(clients=30)
    columns = result["evaluations"][-1]["columns"]
    columns["global"], columns["base rate"] = columns["base rate"], columns["global"]
    comparison = compare(result)
    assert comparison.main.against.name == "base rate"
    assert comparison.answer().startswith("personalized serves clients better than base rate: +")


def test_the_headline_does_not_hide_that_the_base_model_is_better(compare: Compare) -> None:
    """Zero-shot is above global and personalized, so the gain over global is no gain."""
    result = result_of(clients=4)
    columns = result["evaluations"][-1]["columns"]
    columns["zero-shot"], columns["personalized"] = columns["personalized"], columns["zero-shot"]
    comparison = compare(result)
    assert comparison.main.against.name == "zero-shot"
    assert re.fullmatch(
        r"personalized is \d+\.\d points below zero-shot, which may be due to chance",
        comparison.headline(),
    )
    assert "0 of 4 clients gain, 4 lose" in comparison.answer()
    (warning,) = comparison.warnings()
    assert "points below zero-shot, the best other column (95 % interval −" in warning
    assert "0 of 4 clients gain, 4 lose" in warning
    assert "Try evaluate.best = true" in warning
    assert said(comparison).count("--sweep FILE` searches settings") == 1
    result["config"]["evaluate.best"] = "loss"  # which has returned to the best round, too
    (warning,) = compare(result).warnings()
    assert "evaluate.best" not in warning
    assert not compare(result_of(clients=4)).warnings()


def test_a_run_without_a_gain_on_validation_is_named(compare: Compare) -> None:
    without = result_of(clients=4, seed=1) | {"no_gain": "validation shows no gain."}
    assert compare(without).warnings() == ["validation shows no gain."]
    (warning,) = compare(result_of(clients=4, seed=0), without).warnings()
    assert warning.endswith("seed 1: validation shows no gain.")


def test_the_intercept_is_compared_with_like_any_other_column(compare: Compare) -> None:
    result = result_of(clients=30)
    columns = result["evaluations"][-1]["columns"]
    columns["intercept"] = columns["personalized"]
    comparison = compare(result)
    assert comparison.main.against.name == "intercept"
    assert comparison.headline() == "personalized is level with intercept"
    assert not comparison.warnings()
    columns["personalized"] = columns["global"]
    comparison = compare(result)
    (warning,) = comparison.warnings()
    assert "points below intercept (global and one private number per label), the best" in warning
    assert "which shows no difference" not in warning
    assert "Try more training examples for each client, or adapter.layers = top:1" in warning


@pytest.mark.parametrize(
    ("settings", "said", "unsaid"),
    [
        ({"method": "readout"}, "method = global;", "personal.rounds"),
        ({"method": "finetune", "personal.rounds": 0}, "method = global;", "personal.rounds"),
        ({"method": "ditto", "personal.rounds": 5}, "lower personal.rounds", "no such words"),
    ],
)
def test_advice_names_settings_that_the_run_has(
    settings: dict[str, object], said: str, unsaid: str
) -> None:
    qualities = {"global": np.full(9, 0.8), "personalized": np.full(9, 0.7)}
    verdict = Verdict.of(qualities)
    assert verdict is not None
    assert said in verdict.what_to_try(settings)
    assert unsaid not in verdict.what_to_try(settings)


def test_without_personal_models_the_global_one_is_tested(compare: Compare) -> None:
    comparison = compare(result_of(personal=False))
    assert {row.against.name for row in comparison.tested} == {"majority", "zero-shot"}
    assert comparison.main.against.name == "zero-shot"


def test_seeds_are_averaged_within_a_client(compare: Compare) -> None:
    alone = [compare(result_of(seed=seed)).runs.variants[0].conditions["global"] for seed in (0, 1)]
    comparison = compare(result_of(seed=0), result_of(seed=1))
    (variant,) = comparison.runs.variants
    both = variant.conditions["global"]
    np.testing.assert_allclose(both.quality, (alone[0].quality + alone[1].quality) / 2)
    np.testing.assert_allclose(both.second, (alone[0].second + alone[1].second) / 2)
    assert len(both.quality) == 12


def test_threads_and_a_budget_make_no_other_variant(compare: Compare) -> None:
    one = result_of(seed=0, threads=1, memory_budget=0)
    other = result_of(seed=1, threads=2, memory_budget=2**30)
    assert len(compare(one, other).runs.variants) == 1


def test_a_setting_that_an_older_result_lacks_has_the_value_that_was_computed_with(
    compare: Compare,
) -> None:
    older, newer, other = result_of(seed=0), result_of(seed=1), result_of(seed=2)
    older["config"].pop("data.alpha")
    older["config"].pop("aggregation.rule")
    newer["config"]["aggregation.rule"] = "mean"
    assert len(compare(older, newer).runs.variants) == 1
    assert compare(older, other).runs.differing == {"aggregation.rule": ("mean", "median-norm")}
    newer["config"]["data.alpha"] = 7.0
    assert compare(older, newer).runs.differing == {"data.alpha": (0.5, 7.0)}


def test_other_settings_are_another_variant(compare: Compare) -> None:
    comparison = compare(
        result_of(30, learning_rate=0.1), result_of(30, gain=0.0, learning_rate=0.02)
    )
    assert [variant.label for variant in comparison.runs.variants] == ["A", "B"]
    assert comparison.runs.differing == {"learning-rate": (0.1, 0.02)}
    assert list(comparison.by_title()["B against A"]) == ["local-only", "global", "personalized"]
    assert comparison.answer().startswith("personalized B serves clients worse than personalized A")
    assert "learning-rate = 0.02" in said(comparison)


def _other_model(result: dict[str, Any]) -> None:
    result["model_id"] = "cd" * 32


def _other_test(result: dict[str, Any]) -> None:
    result["clients"]["3"]["fingerprints"]["test"] = "ffff"
    result["config"]["data.seed"] = 7


def _fewer(result: dict[str, Any]) -> None:
    del result["clients"]["3"]


def _untold(result: dict[str, Any]) -> None:
    del result["clients"]["3"]["fingerprints"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_other_model, "the base model is cdcdcdcdcdcd, not abababababab"),
        (_other_test, r"the examples of client 3 differ \(test\); data.seed is 7, not 0"),
        (_fewer, "its 11 clients are not the same as the 12 there"),
        (_untold, "client 3 reported no fingerprint"),
    ],
)
def test_other_data_split_or_model_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, compare: Compare
) -> None:
    """This holds even if every client has as many examples as in the other run."""
    other = result_of(seed=1)
    change(other)
    with pytest.raises(SamaraError, match=message):
        compare(result_of(), other)


def test_a_live_run_whose_clients_tell_nothing_of_their_data_is_compared_alone(
    compare: Compare,
) -> None:
    live = result_of()
    for own in live["clients"].values():
        del own["fingerprints"]
    live["names"] = {"3": "anna"}
    comparison = compare(live)
    assert comparison.answer()
    assert comparison.client_name(3) == "anna"
    with pytest.raises(SamaraError, match=r"as live clients never do.* compare only this run"):
        compare(live, result_of(seed=1))


def test_the_same_run_twice_is_refused(compare: Compare) -> None:
    with pytest.raises(SamaraError, match=r"is the same run as .*; name only one of them"):
        compare(result_of(), result_of())


def test_clients_without_a_figure_are_left_out_and_counted(compare: Compare) -> None:
    result = result_of()
    del result["evaluations"][-1]["columns"]["personalized"]["clients"]["5"]
    comparison = compare(result)
    assert comparison.runs.left_out == (5,)
    assert len(comparison.main.quality.by_client) == 11
    assert "1 client is left out" in said(comparison)


def test_no_test_examples_is_one_message(compare: Compare) -> None:
    result = result_of(personal=False)
    result["evaluations"] = [e for e in result["evaluations"] if e["split"] != "test"]
    with pytest.raises(SamaraError, match="no client evaluated on test examples"):
        compare(result)


def test_columns_that_nobody_asked_for_are_no_reason_to_fall(compare: Compare) -> None:
    result = result_of()
    columns = result["evaluations"][-1]["columns"]
    del columns["zero-shot"]
    assert "zero-shot" in compare(result).runs.variants[0].conditions
    del columns["global"]
    with pytest.raises(SamaraError, match="no column 'global'"):
        compare(result)


def test_too_few_clients_are_told(compare: Compare) -> None:
    comparison = compare(result_of(clients=4))
    assert comparison.too_few
    assert comparison.answer().startswith("personalized is ")
    assert "points above global, which may be due to chance" in comparison.answer()
    assert "there are too few clients to show a difference" in comparison.answer()
    assert "over all 6 comparisons; the interval is not corrected" in comparison.answer()
    assert "With 4 clients and 6 comparisons, no corrected p can be below 0.05" in said(comparison)


def test_one_client_is_no_sample(compare: Compare) -> None:
    comparison = compare(result_of(clients=1))
    assert "says nothing about other clients" in comparison.answer()
    assert "nan" not in said(comparison)


@pytest.mark.parametrize("clients", [8, 150])
def test_tables_fit_a_terminal_and_name_who_loses(clients: int, compare: Compare) -> None:
    comparison = compare(result_of(clients), result_of(clients, gain=-0.05, steps=4))
    text = said(comparison)
    assert max(map(len, text.splitlines())) <= 80
    worst = comparison.runs.clients[int(comparison.main.quality.by_client.argmin())]
    assert f"personalized B against personalized A: {worst} (" in " ".join(text.split())


def test_markup_and_escapes_in_names_are_text(compare: Compare, tmp_path: Path) -> None:
    one = write_result(tmp_path / "[bold]a", result_of())
    other = write_result(tmp_path / "b", result_of(seed=1))
    text = said(compare_runs([one, other])).replace("\n", "")
    assert "[bold]a" in text


def test_csv_holds_every_client_under_every_column(compare: Compare) -> None:
    comparison = compare(result_of(), result_of(learning_rate=0.02))
    rows = list(csv.DictReader(io.StringIO(csv_of(comparison))))
    assert len(rows) == 2 * 12 * 7
    found = [
        float(row["accuracy"]) for row in rows if (row["variant"], row["column"]) == ("B", "global")
    ]
    condition = comparison.runs.variants[1].conditions["global"]
    np.testing.assert_array_equal(found, condition.quality)
    areas = [
        float(row["auc"]) for row in rows if (row["variant"], row["column"]) == ("A", "global")
    ]
    assert np.mean(areas) == comparison.runs.variants[0].conditions["global"].mean_auc
    assert f"{np.mean(areas):.3f}" in said(comparison)


def test_costs_are_per_client(compare: Compare) -> None:
    comparison = compare(result_of(clients=10))
    cost = comparison.cost(comparison.runs.variants[0])
    assert (cost.bytes_up, cost.bytes_down) == (160 * 20, 1561 * 20)
    assert (cost.steps, cost.private_steps) == (40, 10)
    assert cost.passes == 20 * 2 * 32, "as counted"
    uncounted = compare(result_of(clients=10) | {"passes": {}})
    assert uncounted.cost(uncounted.runs.variants[0]).passes == 50 * 2 * 16 * 32
    live = result_of(clients=10, adapter__layers="readout", steps=16, batch=10_000) | {"passes": {}}
    examples = np.mean([client["examples"] for client in live["clients"].values()])
    readout = compare(live)
    assert readout.cost(readout.runs.variants[0]).passes == round(examples), "each example once"
    for client in live["clients"].values():
        client["examples"] = 0  # as with a privacy mode
    unknown = compare(live)
    assert unknown.cost(unknown.runs.variants[0]).passes is None
    assert "?" in said(unknown)
    from samara.simulations.report.html import page_of

    assert "<dd>?</dd>" in page_of(unknown)
    assert cost.adapter_bytes == 4 * 1536
    curve = comparison.curve(comparison.runs.variants[0])
    assert [(moment.round, moment.bytes) for moment in curve] == [(0, 0), (10, 17210), (20, 34420)]


def test_what_a_validation_brings_clients_counts_as_training(compare: Compare) -> None:
    content = result_of(clients=10)
    for event in content["evaluations"]:
        event["catch_up_bytes"] = 1000 * (event["split"] == "validation" and event["round"] > 0)
    comparison = compare(content)
    curve = comparison.curve(comparison.runs.variants[0])
    assert [moment.bytes for moment in curve] == [0, 17210 + 100, 34420 + 200]


METHODS = {"global": 0.0, "local": -0.05, "finetune": 0.08, "ditto": 0.09}


def _of_methods(seed: int = 0, **settings: Any) -> list[dict[str, Any]]:
    return [
        result_of(30, seed=seed, personal=method != "global", gain=gain, method=method, **settings)
        for method, gain in METHODS.items()
    ]


def test_methods_are_held_against_global_local_and_what_needs_no_training(
    compare: Compare,
) -> None:
    comparison = compare(*_of_methods(), *_of_methods(seed=1))
    assert [variant.method for variant in comparison.runs.variants] == list(METHODS)
    names = [comparison.name_of(line.condition) for line in comparison.summaries]
    untrained = ["majority", "base rate", "zero-shot", "label bias"]
    assert names == [*untrained, *METHODS]
    groups = comparison.by_title()
    assert list(groups) == [f"{method} against" for method in METHODS]
    assert list(groups["ditto against"]) == ["global", "local", *untrained]
    assert list(groups["local against"]) == untrained
    assert len(comparison.tested) == 2 * 6 + 2 * 4
    assert (comparison.name_of(comparison.main.condition), comparison.main.against.name) == (
        "ditto",
        "global",
    )
    assert comparison.answer().startswith("ditto serves clients better than global: +")
    text = said(comparison)
    assert "finetune against" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_answer_is_about_the_best_method_and_its_best_rival(compare: Compare) -> None:
    gains = {"global": 0.0, "local": 0.05, "finetune": 0.08, "ditto": 0.09}
    runs = [
        result_of(30, personal=method != "global", gain=gain, method=method)
        for method, gain in gains.items()
    ]
    assert compare(*runs).answer().startswith("ditto serves clients better than local: +")


def test_only_settings_that_a_method_reads_are_told_of_it(compare: Compare) -> None:
    runs = _of_methods()
    for run, rate in zip(runs, (0.1, 0.2, 0.3, 0.4), strict=True):
        run["config"] |= {"personal.pull": rate / 8, "personal.learning-rate": rate, "rounds": 9}
    labels = compare(*runs).labels()
    assert {name for name in METHODS if "personal.pull" in labels[name]} == {"ditto"}
    assert {name for name in METHODS if "personal.learning-rate" in labels[name]} == {*METHODS} - {
        "global"
    }


def test_newcomers_stand_apart(compare: Compare) -> None:
    comparison = compare(*_of_methods(cohort__newcomers=4))
    assert comparison.runs.clients == tuple(range(26))
    assert comparison.runs.newcomers == (26, 27, 28, 29)
    assert all(len(row.quality.by_client) == 26 for row in comparison.tested)
    whole = compare(*_of_methods())
    held, new, every = (
        found.runs.variants[2].conditions["personalized"].quality
        if found is not None
        else comparison.runs.variants[2].newcomer_conditions["personalized"].quality
        for found in (comparison, None, whole)
    )
    np.testing.assert_array_equal(np.concatenate([held, new]), every)
    assert "Mean over 4 newcomers, which never trained the global model" in " ".join(
        said(comparison).split()
    )
    assert csv_of(comparison).count("personalized,") == csv_of(whole).count("personalized,")


def test_csv_tells_what_a_client_spent(compare: Compare) -> None:
    result = result_of(steps=3)
    del result["rounds"][0]["clients"]["1"]
    rows = list(csv.DictReader(io.StringIO(csv_of(compare(result, result_of(steps=3, seed=1))))))
    spent = {
        row["client"]: [row[key] for key in ("steps", "private_steps", "bytes_up", "bytes_down")]
        for row in rows
    }
    assert spent["0"] == ["60.0", "15.0", "3200.0", "31220.0"]
    assert spent["1"] == ["58.5", "15.0", "3120.0", "30439.5"]


def test_a_page_shows_methods(compare: Compare) -> None:
    pytest.importorskip("jinja2", reason="needs the extra samara-fl[report]")
    from samara.simulations.report.html import page_of

    page = page_of(compare(*_of_methods(cohort__newcomers=3)))
    assert "ditto serves clients better than global" in page
    assert "newcomers, which never trained the global model" in page


def test_a_client_that_missed_the_first_evaluations_is_compared(compare: Compare) -> None:
    result = result_of(clients=4)
    for missed in result["evaluations"][:2]:
        del missed["columns"]["global"]["clients"]["3"]
    comparison = compare(result)
    assert comparison.runs.left_out == ()
    assert "majority" in comparison.runs.variants[0].conditions
