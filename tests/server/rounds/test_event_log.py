"""The server's log lines about clients that refuse."""

from dataclasses import asdict

from samara.server.rounds.event_log import RoundEvent, describe_event, describe_refusals


def test_clients_of_one_reason_are_named_together() -> None:
    said = describe_refusals({10: "no data", 2: "no task", 3: "no data"})
    assert said == "client 2: no task; clients 3, 10: no data"
    assert describe_refusals({"1": "late"}) == "client 1: late"
    assert describe_refusals({}) == ""


def test_no_line_speaks_of_a_round_after_the_last() -> None:
    """After the planned rounds, the ledger has rounds for the best model and the intercept."""
    last, behind = ({"event": "round"} | asdict(RoundEvent(round=r)) for r in (40, 41))
    assert describe_event(last, 40).startswith("round 40: ")
    assert describe_event(behind, 40).startswith("after the last round: ")
    column = {"global": {"mean_client_accuracy": 0.5}}
    evaluated = {"event": "evaluation", "round": 41, "split": "test", "columns": column}
    said = describe_event(evaluated | {"bytes_up": 1, "bytes_down": 2}, 40)
    assert said.startswith("after the last round: test accuracy, mean of the clients: global 50")
