import pytest
from results import result_of

from samara.shared.results.result import RunResult
from samara.shared.results.traffic import OF_AN_EXCHANGE, Bytes, Traffic, mean_traffic, traffic_of

TRAFFIC = Traffic(
    numbers=100,
    client_rounds=10.0,
    exchanges=15.0,
    bytes_up=1_000,
    bytes_down=2_000,
    passes=32.0,
    scalar_ratio=0.05,
    is_noised=False,
)


def with_(**changes: object) -> Traffic:
    return Traffic(**(vars(TRAFFIC) | changes))  # type: ignore[arg-type]


def test_a_run_is_counted_by_its_reports_and_evaluations() -> None:
    content = result_of(clients=6)
    traffic = traffic_of(RunResult.model_validate(content))
    assert (traffic.numbers, traffic.client_rounds) == (1536, 6 * 20)
    assert traffic.exchanges == 6 * (20 + len(content["evaluations"]))
    assert traffic.payload == (content["bytes_up"], content["bytes_down"])
    assert traffic.per_client_round(traffic.payload) == (160, 1561)
    assert traffic.per_client_round(traffic.fed_avg) == (4 * 1536, 4 * 1536)
    assert traffic.passes == 20 * 2 * 32
    assert traffic.scalar_ratio == 20 * 32 / 1536


def test_who_refused_to_evaluate_was_asked_as_well() -> None:
    content = result_of(clients=6)
    event = content["evaluations"][0]
    before = traffic_of(RunResult.model_validate(content)).exchanges
    event["refused"] = {"7": "no"}
    assert traffic_of(RunResult.model_validate(content)).exchanges == before + 1


def test_what_crosses_the_wire_is_payload_packets_and_what_an_exchange_takes() -> None:
    for wire, beside in OF_AN_EXCHANGE.items():
        up, down = TRAFFIC.on(wire)
        assert up == pytest.approx(1_000 * 1514 / 1448 + 15 * beside.up)
        assert down == pytest.approx(2_000 * 1514 / 1448 + 15 * beside.down)
    assert OF_AN_EXCHANGE["gateway's stream"] == (786 - 160, 1_427 - 905)
    assert OF_AN_EXCHANGE["Flower's SuperNode"] == (13_205 - 160, 5_765 - 905)


def test_a_run_without_a_report_has_a_table_too() -> None:
    nothing = with_(client_rounds=0.0, exchanges=0.0, scalar_ratio=None, passes=None)
    assert nothing.per_client_round(nothing.payload) == Bytes(0, 0)
    assert nothing.sentences() == []
    assert len(nothing.lines()) == 6


@pytest.mark.parametrize(
    ("ratio", "noised", "determined"),
    [(0.99, False, False), (1.0, False, True), (80.0, False, True), (80.0, True, False)],
)
def test_it_says_plainly_when_the_scalars_determine_the_gradient(
    ratio: float, noised: bool, determined: bool
) -> None:
    said = " ".join(with_(scalar_ratio=ratio, is_noised=noised).sentences())
    assert ("the server can compute the mean gradient" in said) == determined
    assert ("from 1 on they determine" in said) != noised
    assert ("ε bounds" in said) == noised


def test_it_says_plainly_when_fed_avg_sends_fewer_bytes() -> None:
    assert not any("FedAvg" in line for line in TRAFFIC.sentences())
    assert any("FedAvg" in line for line in with_(numbers=30).sentences())


def test_repetitions_have_means_of_what_they_counted() -> None:
    other = with_(bytes_up=3_000, passes=None, scalar_ratio=0.15)
    mean = mean_traffic([TRAFFIC, other])
    assert (mean.bytes_up, mean.passes) == (2_000, 32)
    assert mean.scalar_ratio == pytest.approx(0.1)


def test_it_is_json() -> None:
    content = TRAFFIC.to_json()
    assert content["fed_avg"] == {
        "whole": {"up": 4_000, "down": 4_000},
        "per_client_round": {"up": 400, "down": 400},
    }
    assert content["payload"]["per_client_round"] == {"up": 100, "down": 200}
    assert (content["client_rounds"], content["exchanges"]) == (10, 15)
