"""What the server says of clients that refuse."""

from samara.server.rounds.event_log import describe_refusals


def test_clients_of_one_reason_are_named_together() -> None:
    said = describe_refusals({10: "no data", 2: "no task", 3: "no data"})
    assert said == "client 2: no task; clients 3, 10: no data"
    assert describe_refusals({"1": "late"}) == "client 1: late"
    assert describe_refusals({}) == ""
