"""The warning of a run whose validation shows no gain."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from results import result_of, write_result

import samara.server.app
from samara.server.live.server_log import LOG_FILE
from samara.server.rounds.missing_gain import describe_missing_gain
from samara.shared.settings.config import RunConfig

READOUT, MEAN = "adapter.layers = readout", "aggregation.rule = mean"
BEST, MORE = "evaluate.best = true", "more validation examples"


def events_of(
    *states: tuple[list[float], list[float]], back_to: int | None = None, examples: int = 100
) -> list[dict[str, Any]]:
    """The validations of rounds 0, 1, …, from the clients' losses and accuracies."""
    events: list[dict[str, Any]] = []
    for number, (losses, accuracies) in enumerate(states):
        clients = {
            str(client): {"loss": loss, "accuracy": accuracy, "examples": examples}
            for client, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
        }
        if number:
            events.append({"event": "round", "round": number, "back_to": None})
        events.append(
            {
                "event": "evaluation",
                "split": "validation",
                "round": number,
                "columns": {"global": {"clients": clients}},
            }
        )
    if back_to is not None:
        events.append({"event": "round", "round": len(states), "back_to": back_to})
    return events


def said(events: list[dict[str, Any]], newcomers: tuple[int, ...] = (), **settings: Any) -> str:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return describe_missing_gain(events, newcomers, RunConfig.of(dotted, "a test").flat())


def test_a_few_clients_that_lose_much_are_not_trimmed_away() -> None:
    """Losses of SST-2's eight clients before and after ten rounds that cost 2.5 points of accuracy.

    Most clients' losses fell, and so did their trimmed mean.
    """
    losses = (
        [0.697, 0.567, 0.559, 0.502, 0.459, 0.414, 0.526, 0.529],
        [0.821, 0.559, 0.538, 0.505, 0.372, 0.384, 0.600, 0.516],
    )
    before, after = ((own, [0.7] * 8) for own in losses)
    sentence = said(events_of(before, after), adapter__layers="top:1")
    assert "validation shows no gain over the initial model: the mean loss of 8" in sentence
    assert "0.537, from 0.532 (+0.005 ± 0.023)" in sentence
    assert READOUT in sentence
    assert MEAN in sentence
    assert BEST in sentence
    assert MORE in sentence


@pytest.mark.parametrize(
    ("after", "shows"),
    [
        (([0.50, 0.61, 0.39], [0.6] * 3), True),  # every loss is lower
        (([0.40, 0.71, 0.49], [0.6] * 3), False),  # in the mean it is, but by less than its error
        (([0.61, 0.71, 0.51], [0.7, 0.69, 0.71]), True),  # the loss rises, and so does accuracy
        (([0.60, 0.70, 0.50], [0.6] * 3), False),  # nothing changes
    ],
)
def test_loss_or_accuracy_must_gain_more_than_the_clients_differ_in_it(
    after: tuple[list[float], list[float]], shows: bool
) -> None:
    events = events_of(([0.6, 0.7, 0.5], [0.6] * 3), after)
    assert bool(said(events)) is not shows


def test_one_client_must_gain_more_than_the_error_of_a_share() -> None:
    start, better = ([0.7], [0.5]), ([0.6], [0.6])
    assert not said(events_of(start, better, examples=100))  # 10 ± 5 points
    sentence = said(events_of(start, better, examples=20))  # 10 ± 11 points
    assert "the client's loss is 0.600, from 0.700" in sentence
    assert "60.0%, from 50.0% (+10.0 ± 11.0 points" in sentence


def test_the_state_counts_that_a_run_returned_to() -> None:
    start, better, worse = (([loss, loss], [0.6, 0.6]) for loss in (0.6, 0.5, 0.7))
    assert not said(events_of(start, better, worse, back_to=1))
    assert said(events_of(start, better, worse))
    reverted = events_of(start, better, worse)
    reverted[-2]["back_to"] = 1  # by the guard, after which the state was validated again
    assert said(reverted)
    assert "it ends with its initial model" in said(events_of(start, worse, back_to=0))


def test_nothing_is_said_where_nothing_can_be_compared() -> None:
    start, worse = ([0.6, 0.6], [0.6, 0.6]), ([0.7, 0.7], [0.6, 0.6])
    assert not said(events_of(start))
    assert not said([e for e in events_of(start, worse) if e["event"] == "round"])
    assert not said([e for e in events_of(start, worse) if e["round"]])
    assert not said(events_of(start, worse)[:-1])
    assert not said(events_of(start, worse), newcomers=(0, 1))


def test_what_a_run_has_already_is_not_advised() -> None:
    events = events_of(([0.6, 0.6], [0.6, 0.6]), ([0.7, 0.7], [0.6, 0.6]))
    sentence = said(events, adapter__layers="readout", aggregation__rule="mean")
    assert READOUT not in sentence
    assert MEAN not in sentence
    assert BEST not in sentence  # a readout alone returns to its lowest loss
    assert MORE in sentence


def test_a_server_logs_that_its_run_gained_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning is in the log, from which a live server's display and page read."""
    run = write_result(tmp_path / "run", result_of() | {"no_gain": "validation shows no gain."})
    monkeypatch.setattr(samara.server.app, "serve", lambda *_, **__: run)
    monkeypatch.setattr(samara.server.app, "prepare_grid", lambda grid, _: grid)
    grid: Any = None
    context: Any = SimpleNamespace(run_config={"out": str(run)})
    samara.server.app.main(grid, context)
    lines = [json.loads(line) for line in (run / LOG_FILE).read_text().splitlines()]
    assert [line["message"] for line in lines if line["level"] == "warning"] == [
        "validation shows no gain."
    ]
