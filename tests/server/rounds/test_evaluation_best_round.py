"""A run that returns to its best round by validation."""

from typing import Any

import pytest
from federations import Settings, config_of, loaded

from samara.server.rounds.evaluation import find_best_round, find_lowest_loss
from samara.server.store import replay_run
from samara.shared.protocol.frames.instructions import Split
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import RunResult, read_result
from samara.shared.tasks.label_scores import cross_entropy
from samara.shared.tasks.profiled_loss import PROFILED, profiled_cross_entropy
from samara.simulations.simulate import simulate


def test_a_run_returns_to_its_best_round(small: Settings) -> None:
    """A huge step size ruins the model, so the best round is an early one."""
    config = config_of(small, evaluate__best=True, rounds=4, learning_rate=3.0, steps=1)
    folder = simulate(config)
    result = read_result(folder)
    means = {}
    for event in result["evaluations"]:
        column = event["columns"].get("global")
        if event["split"] == "validation" and column:
            own = column["clients"]
            means[event["round"]] = (own["0"]["accuracy"] + own["1"]["accuracy"]) / 2
    best = max(means, key=lambda number: (means[number], number))
    records = list(read_ledger(folder / "ledger"))
    digests = {record.delta.round: record.end_digest.hex() for record in records}
    if best == 4:
        pytest.fail("the test's settings ruin nothing; choose larger steps")
    assert result["final_round"] == 5
    assert result["rounds"][-1]["back_to"] == best
    assert best == 0 or result["final_digest"] == digests[best]
    assert result["evaluations"][-1]["round"] == 5
    (folder / "result.json").unlink()
    assert read_result(simulate(config))["final_digest"] == result["final_digest"]


def test_a_run_returns_no_farther_than_its_ledger_goes(small: Settings) -> None:
    changes: dict[str, Any] = {"rounds": 9, "learning_rate": 3.0, "steps": 1, "evaluate__every": 1}
    config = config_of(small, evaluate__best=True, ledger__snapshot_every=1, **changes)
    folder = simulate(config)
    result = read_result(folder)
    oldest = next(read_ledger(folder / "ledger")).delta.round - 1
    assert oldest > 1
    *rounds, last = result["rounds"]
    assert last["back_to"] >= oldest
    stands = next(event["digest"] for event in rounds if event["round"] == last["back_to"])
    assert result["final_digest"] == stands


def validation(round_number: int, **accuracies: list[float]) -> dict[str, Any]:
    """An event with the accuracies of clients by column."""
    columns = {
        name: {"clients": {str(i): {"accuracy": value} for i, value in enumerate(values)}}
        for name, values in accuracies.items()
    }
    fields = {"event": "evaluation", "split": "validation", "round": round_number}
    return fields | {"columns": columns}


def test_personal_models_decide_where_clients_validate_them() -> None:
    events = [
        validation(1, **{"global": [0.9, 0.9, 0.1], "personalized": [0.5, 0.6, 0.9]}),
        validation(2, **{"global": [0.5, 0.5, 0.1], "personalized": [0.8, 0.7, 0.1]}),
        validation(3, **{"personalized": [1.0, 1.0, 1.0]}),  # after the last round
    ]
    assert find_best_round(events, newcomers=[2]) == 2
    assert find_best_round(events, newcomers=[0, 1]) == 1
    alone = [validation(number, **{"global": [0.1 * number]}) for number in (3, 1)]
    assert find_best_round(alone, newcomers=[]) == 3


def losses_by_round(losses: dict[int, list[float]], trimmed: bool = False) -> list[dict[str, Any]]:
    """Validations with the given losses, and with an accuracy that rises from round to round."""
    events = []
    for number, values in losses.items():
        event = validation(number, **{"global": [number / 100] * len(values)})
        column = event["columns"]["global"]
        for client, loss in enumerate(values):
            column["clients"][str(client)] |= {"loss": loss, "examples": 16}
        events.append(event)
        if trimmed:
            column["trimmed_client_accuracy"] = 0.5
    return events


def test_the_lowest_loss_decides_where_it_is_asked_for() -> None:
    one = losses_by_round({0: [0.6], 10: [0.4], 20: [0.45], 30: [0.5]})
    assert find_lowest_loss(one, []) == 10
    assert find_best_round(one, []) == 30
    assert find_lowest_loss([], []) is None


def test_of_one_client_the_last_round_that_may_be_as_good_counts() -> None:
    """With 16 examples, the standard error is a quarter of the change of the training loss."""
    events = losses_by_round({0: [0.60], 1: [0.64], 2: [0.66], 3: [0.70]})
    assert find_lowest_loss(events, []) == 0
    for number, loss in ((1, 0.9), (2, 0.6), (3, 0.58), (4, None)):
        events.append({"event": "round", "round": number, "loss": loss})
    assert find_lowest_loss(events, []) == 2


def test_a_loss_must_be_lower_by_more_than_the_clients_differ_in_it() -> None:
    """Both rounds are better by 0.03 on average, but only one is better for every client."""
    last = [0.5, 0.9, 1.7]
    unsure = losses_by_round({10: [0.4, 0.8, 1.81], 40: last})
    assert find_lowest_loss(unsure, []) == 40
    sure = losses_by_round({10: [0.47, 0.86, 1.68], 40: last})
    assert find_lowest_loss(sure, []) == 10
    assert find_lowest_loss(sure, newcomers=[0, 1, 2]) is None


def test_a_few_wrong_losses_do_not_decide_where_means_are_trimmed() -> None:
    losses = {10: [-90.0, 0.51, 0.52, 0.51], 20: [0.5] * 4}
    assert find_lowest_loss(losses_by_round(losses, trimmed=True), []) == 20


def test_clients_that_validated_only_once_are_not_compared() -> None:
    events = losses_by_round({10: [0.4, 9.0], 20: [0.5]})
    assert find_lowest_loss(events, []) == 10


def test_a_run_whose_last_round_is_best_writes_no_round_more(small: Settings) -> None:
    config = config_of(small, evaluate__best="loss", rounds=2, learning_rate=0.0, steps=1)
    result = read_result(simulate(config))
    assert (result["final_round"], len(result["rounds"])) == (2, 2)
    assert "validation shows no gain" in result["no_gain"]  # by a step size of 0


def test_a_readout_that_gets_worse_returns_to_its_lowest_loss_by_default(small: Settings) -> None:
    config = config_of(
        small, adapter__layers="readout", rounds=4, learning_rate=100.0, steps=1, queries=2
    )
    assert config.evaluate.best == "loss"
    folder = simulate(config)
    result = RunResult.read(folder)
    rounds = [event for event in result.evaluations if event.split == "validation"]
    losses = {
        event.round: event.columns["global"].clients[0].loss
        + event.columns["global"].clients[1].loss
        for event in rounds
        if "global" in event.columns and event.round <= 4
    }
    best = min(losses, key=lambda number: losses[number])
    if best == 4:
        pytest.fail("the test's settings ruin nothing; choose larger steps")
    assert (result.rounds[-1].round, read_result(folder)["rounds"][-1]["back_to"]) == (5, best)


def test_the_plain_loss_decides_where_a_profiled_run_returns_to(small: Settings) -> None:
    """The profiled loss is lowest after the last round, but a model is used without a shift."""
    changes: dict[str, Any] = {"adapter__layers": "readout", "adapter__label_bias": False}
    changes |= {"rounds": 4, "steps": 1, "queries": 2, "cohort__newcomers": 0}
    changes |= {"learning_rate": 30.0, "objective": PROFILED}
    folder = simulate(config_of(small, **changes))
    run = loaded(small, **changes)
    examples = [run.data.share_of(client, 3).tokenized(Split.VALIDATION) for client in range(3)]
    plain, profiled = {}, {}
    for record in replay_run(folder):
        scores = [(run.runtime.scores(record.state, own.prompts)[None], own) for own in examples]
        plain[record.round] = [float(cross_entropy(one, own.labels)[0]) for one, own in scores]
        profiled[record.round] = sum(
            float(profiled_cross_entropy(one, own.labels)[0]) for one, own in scores
        )
    result = RunResult.read(folder)
    for event in result.evaluations:
        if event.split == "validation" and event.round <= 4:
            clients = event.columns["global"].clients
            known = [clients[client].loss for client in range(3)]
            assert known == pytest.approx(plain[event.round], abs=1e-5)
    best = read_result(folder)["rounds"][-1]["back_to"]
    assert sum(plain[best]) < sum(plain[4])
    assert profiled[best] > profiled[4]


def test_the_best_round_of_a_readout_is_that_of_the_personal_models(small: Settings) -> None:
    """Validations fit a private part to each round's model, without recording the fit."""
    config = config_of(
        small,
        method="readout",
        adapter__layers="readout",
        evaluate__best=True,
        rounds=4,
        personal__rounds=0,
        learning_rate=20.0,
        steps=1,
    )
    folder = simulate(config)
    result = RunResult.read(folder)
    assert not any(event.refused for event in [*result.rounds, *result.evaluations])
    validations = {
        event.round: event.columns["personalized"].clients
        for event in result.evaluations
        if event.split == "validation" and "global" in event.columns
    }
    assert list(validations) == [0, 1, 2, 3, 4, 6]  # after round 6, which adds the intercept, too
    with_intercept = validations.pop(6)
    means = {
        number: (clients[0].accuracy + clients[1].accuracy) / 2
        for number, clients in validations.items()
    }
    best = max(means, key=lambda number: (means[number], number))
    assert [event.round for event in result.rounds[-2:]] == [5, 6]
    assert read_result(folder)["rounds"][-2]["back_to"] == best
    *_, last = [event for event in result.evaluations if event.split == "validation"]
    assert list(last.columns) == ["personalized"]
    assert last.columns["personalized"].clients == validations[best] == with_intercept
    for client in range(3):
        ledger = folder / "clients" / str(client) / "personal.ledger"
        assert len(list(read_ledger(ledger))) == 1
    assert result.passes == {client: facts.examples for client, facts in result.clients.items()}
