"""The status of a run as a value, and as shown on the terminal, the page and in metrics."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from samara.server.live.connections import CONNECTIONS_FILE, write_connections
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.live.run_status import ClientStatus, RunStatus
from samara.server.live.server_log import LOG_FILE, REFUSED_EVENT
from samara.server.live.status import StatusReader
from samara.server.live.superlink_process import Node
from samara.server.store import METRICS_FILE
from samara.server.watch.client_order import clients_to_show
from samara.server.watch.metrics import METRICS, MOST_CLIENTS, metrics_text
from samara.server.watch.page import page_value
from samara.server.watch.terminal import byte_text, render_status, sparkline
from samara.shared.storage.events import append_event

NAMES = "kitchen", "garden", "attic"
MARKUP = "<script>alert(1)</script> [red]no[/red]"


def round_event(number: int, clients: dict[str, Any], **more: Any) -> dict[str, Any]:
    counts = {"loss": 0.5, "bytes_up": 48, "bytes_down": 500}
    event = {
        "event": "round",
        "round": number,
        "loss": 1.0 / number,
        "learning_rate": 0.1,
        "reports": len(clients),
        "refused": {},
        "problem": "",
        "bytes_up": 48 * len(clients),
        "bytes_down": 500 * len(clients),
        "seconds": 7.0 * number,
        "time": f"2026-01-01T00:00:{number:02}+00:00",
        "digest": "ab" * 32,
        "clients": {index: counts | fields for index, fields in clients.items()},
    }
    return event | more


def evaluation(number: int, accuracy: float) -> dict[str, Any]:
    figures = {"accuracy": 0.0, "mean_client_accuracy": accuracy, "loss": 0.3}
    event = {"event": "evaluation", "round": number, "split": "validation"}
    return event | {"columns": {"global": figures}, "refused": {}, "bytes_up": 1, "bytes_down": 2}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three clients: one shares its power, one rests, and one is away."""
    keys = ClientKeys(tmp_path / KEYS_FOLDER)
    for name in NAMES:
        keys.create(name)
    kitchen, garden, attic = (str(keys.find_by_name(name).client) for name in NAMES)  # type: ignore[union-attr]
    cost = {"cost": {"seconds": 4.0, "paused": 0.0, "joules": 28.0}}
    for event in (
        evaluation(0, 0.5),
        round_event(1, {kitchen: cost, garden: {}, attic: {}}, epsilon=0.25),
        round_event(2, {kitchen: cost}, refused={garden: MARKUP}, absent=[int(attic)], epsilon=0.5),
        round_event(3, {kitchen: cost}, resting=[int(garden)], epsilon=0.75),
        evaluation(3, 0.75),
    ):
        append_event(tmp_path / METRICS_FILE, event)
    line = {"time": "2026-01-01T00:00:09", "level": "warning", "message": "a client is late"}
    (tmp_path / LOG_FILE).write_text(json.dumps(line) + "\n")
    write_connections(
        tmp_path,
        [
            Node(1, b"", "kitchen", True, True),
            Node(2, b"", "garden", True, True),
            Node(3, b"", "attic", False, True),
            Node(4, b"", "nobody", False, False),
        ],
    )
    return tmp_path


def status_of(run: Path) -> RunStatus:
    return StatusReader(run).read()


def by_name(status: RunStatus) -> dict[str, Any]:
    return {client.name: client for client in status.clients.values()}


def picture(status: RunStatus, height: int = 40, width: int = 140) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render_status(status, height, width))
    return console.export_text()


def test_events_connections_and_keys_make_one_status(run: Path) -> None:
    status = status_of(run)
    assert (status.reports, status.failures, status.connected) == (5, 2, 2)
    assert (status.epsilon, [each.loss for each in status.rounds]) == (0.75, [1.0, 0.5, 1 / 3])
    assert (status.bytes_up, status.bytes_down) == (48 * 5 + 2, 500 * 5 + 4)
    assert [e.accuracy for e in status.curves["global"]] == [0.5, 0.75]
    clients = by_name(status)
    assert (clients["kitchen"].watts, clients["kitchen"].seconds) == (7.0, 4.0)
    assert (clients["garden"].watts, clients["garden"].state) == (None, "resting")
    assert [clients[name].link for name in NAMES] == ["connected", "connected", "away"]
    assert [message.text for message in status.messages] == ["a client is late"]


def test_a_reader_that_follows_a_run_sees_what_a_new_one_sees(run: Path) -> None:
    reader = StatusReader(run)
    index = next(n for n, client in reader.read().clients.items() if client.name == "attic")
    later = {"time": "2026-01-02", "level": "warning", "message": "refused: another model"}
    refusal = later | {"event": REFUSED_EVENT, "client": index}
    for number in (1, 2):
        with (run / LOG_FILE).open("a") as log:
            log.write(json.dumps(refusal) + "\n")
        append_event(run / METRICS_FILE, round_event(3 + number, {str(index): {}}))
        assert reader.read() == status_of(run)
        client = reader.read().clients[index]
        assert (client.state, client.failures, client.reports) == (
            "refused",
            1 + number,
            1 + number,
        )


def test_messages_name_clients_as_the_tables_do(run: Path) -> None:
    status = status_of(run)
    index = next(n for n, client in status.clients.items() if client.name == "attic")
    line = {"time": "2026-01-02", "level": "warning"}
    line["message"] = (
        f"client {index} fails repeatedly and is left out for a round; client 7: no data"
    )
    with (run / LOG_FILE).open("a") as log:
        log.write(json.dumps(line) + "\n")
    said = status_of(run).messages[-1].text
    assert said == "client attic fails repeatedly and is left out for a round; client 7: no data"


def test_connections_that_nobody_keeps_are_unknown(run: Path) -> None:
    os.utime(run / CONNECTIONS_FILE, (0, 0))
    assert status_of(run).connected is None
    assert {client.link for client in status_of(run).clients.values()} == {""}
    (run / CONNECTIONS_FILE).write_text("[1")
    assert status_of(run).connected is None


def test_clients_that_need_an_operator_come_first(run: Path) -> None:
    names = [client.name for _, client in clients_to_show(status_of(run))]
    assert names == ["garden", "attic", "kitchen"]


def test_numbers_in_names_count_as_numbers() -> None:
    names = ("board-10", "board-2", "attic", "2nd", "board-2b")
    clients = {number: ClientStatus(name=name) for number, name in enumerate(names)}
    shown = clients_to_show(RunStatus(0, "", clients, 0, 0))
    assert [client.name for _, client in shown] == [
        "2nd",
        "attic",
        "board-2",
        "board-2b",
        "board-10",
    ]


def test_a_run_that_nobody_serves_says_so() -> None:
    alone, served = RunStatus(3, "", {}, 0, 0), RunStatus(3, "", {}, 0, 0, connected=0)
    assert alone.describe_server().startswith("no server has served this run in the last minute")
    assert served.describe_server() == ""
    ended = RunStatus(3, "", {}, 0, 0, is_finished=True)
    assert ended.describe_server() == "the run is finished"


def test_the_terminal_shows_who_rests_and_why_and_no_markup(run: Path) -> None:
    shown = picture(status_of(run))
    for text in ("ε 0.75", "7.0 W, 4.0 s", "resting", "away", "SuperNodes: 2", "a client is late"):
        assert text in shown
    assert "75.0% after round 3" in shown
    assert f"round 2: {MARKUP}"[:30] in shown


def test_a_client_behind_a_gateway_has_a_stream(run: Path) -> None:
    append_event(run / METRICS_FILE, round_event(4, {"7": {}}, by_stream=[7]))
    status = status_of(run)
    assert (status.clients[7].wire, by_name(status)["kitchen"].wire) == ("stream", "SuperNode")
    assert [each["link"] for each in page_value(status)["clients"]].count("stream") == 1
    assert "stream" in picture(status)


def test_a_low_terminal_counts_the_clients_that_it_leaves_out(run: Path) -> None:
    keys = ClientKeys(run / KEYS_FOLDER)
    for number in range(20):
        keys.create(f"more-{number}")
    low, high = (picture(status_of(run), height) for height in (30, 60))
    assert re.search(r"and \d+ more", low)
    assert "more-19" in high
    assert len(low.splitlines()) <= 30


def test_a_narrow_terminal_leaves_out_columns_and_shows_why(run: Path) -> None:
    wide, narrow = (picture(status_of(run), width=width) for width in (140, 80))
    for text in ("resting", "away", "last report", "failed", "round 2: <script>"):
        assert text in narrow
    assert "cost of a round" in wide
    assert not any(name in narrow for name in ("cost of a round", "144 B"))


def test_a_run_that_no_server_serves_says_so(run: Path) -> None:
    assert "no server in the last minute" not in picture(status_of(run))
    os.utime(run / CONNECTIONS_FILE, (0, 0))
    assert "no server in the last minute" in picture(status_of(run))


def test_a_run_before_its_first_round_is_shown(tmp_path: Path) -> None:
    ClientKeys(tmp_path / KEYS_FOLDER).create("kitchen")
    status = status_of(tmp_path)
    assert "no round yet" in picture(status)
    assert page_value(status)["state"] == "waiting"
    assert samples_of(metrics_text(status)[0].decode())["samara_round",] == 0


def test_the_page_has_what_the_status_has(run: Path) -> None:
    value = page_value(status_of(run))
    assert json.loads(json.dumps(value))["name"] == run.name
    assert value["clients"][0]["why"] == f"round 2: {MARKUP}"
    assert (value["accuracy"]["global"], value["epsilon"]) == ([(0, 0.5), (3, 0.75)], 0.75)
    assert value["more_clients"] == 0


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(text)
    return {
        (
            sample.name,
            *(v for key, v in sorted(sample.labels.items()) if key != "run"),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_those_of_the_status(run: Path) -> None:
    status = status_of(run)
    text, media_type = metrics_text(status)
    assert media_type.startswith("text/plain")
    samples = samples_of(text.decode())
    index = next(str(n) for n, client in status.clients.items() if client.name == "kitchen")
    assert samples["samara_reports_total",] == 5
    assert samples["samara_epsilon",] == 0.75
    assert samples["samara_clients", "resting"] == 1
    assert samples["samara_accuracy", "global", "validation"] == 0.75
    assert samples["samara_client_power_watts", index, "kitchen"] == 7.0
    assert samples["samara_round_end_timestamp_seconds",] == 1767225603
    names = {name for name, *_ in samples}
    assert names == {metric.name for metric in METRICS}


def test_openmetrics_is_given_to_who_asks_for_it(run: Path) -> None:
    text, media_type = metrics_text(status_of(run), "application/openmetrics-text; version=1.0.0")
    assert media_type.startswith("application/openmetrics-text")
    families = openmetrics.text_string_to_metric_families(text.decode())
    assert {"samara_reports", "samara_round"} <= {family.name for family in families}


def test_a_large_run_has_no_series_per_client(run: Path) -> None:
    status = status_of(run)
    client = next(iter(status.clients.values()))
    status.clients = dict.fromkeys(range(MOST_CLIENTS + 1), client)
    names = {name for name, *_ in samples_of(metrics_text(status)[0].decode())}
    assert "samara_clients" in names
    assert not any(name.startswith("samara_client_") for name in names)


def test_curves_and_bytes_read_well() -> None:
    assert sparkline([3.0, 1.0, 2.0, 1.0]) == "█▁▅▁"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert [byte_text(n) for n in (999, 1000, 1_500_000)] == ["999 B", "1.0 kB", "1.5 MB"]
