"""A live run as shown by `server up --dashboard --json` and `server status --watch`."""

import json
import threading

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address, free_port
from benchmarks.faults.toy_clients import Device
from samara.server.commands import app as server_commands
from samara.server.watch.dashboard import TOKEN_FILE

pytestmark = pytest.mark.slow

NAMES = "kitchen", "garden"
SECONDS = 60.0
SETTINGS = {
    "rounds": 100_000,
    "steps": 1,
    "queries": 2,
    "learning-rate": 0.001,
    "data.clients": len(NAMES),
    "personal.rounds": 0,
    "evaluate.every": 0,
    "cohort.available": len(NAMES),
}


def test_a_live_run_is_seen_while_it_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("w")
    with LiveRun(folder, SETTINGS, NAMES, free_address()) as live:
        dashboard_port = free_port()
        live.serve("--json", "--dashboard", "--dashboard-port", str(dashboard_port))
        authority = live.run / "certificates" / "ca.pem"
        devices = [
            Device(number, len(NAMES), live.address, authority, live.key(name))
            for number, name in enumerate(NAMES)
        ]
        for device in devices:
            device.start()
        live.wait_for_round(2)
        address = f"http://127.0.0.1:{dashboard_port}"
        token = (live.run / TOKEN_FILE).read_text().strip()
        assert token not in live.said()
        assert httpx.get(f"{address}/metrics").status_code == 401
        with httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS
        ) as client:
            with client.stream("GET", "/events") as stream:
                lines = (line for line in stream.iter_lines() if line.startswith("data: "))
                seen = json.loads(next(lines).removeprefix("data: "))
                while seen["round"] < live.last() or not seen["reports"]:
                    seen = json.loads(next(lines).removeprefix("data: "))
            assert {each["name"] for each in seen["clients"]} == set(NAMES)
            text = client.get("/metrics").text
        samples = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
        assert samples["samara_round"] >= 2
        assert samples["samara_planned_rounds"] == SETTINGS["rounds"]
        watched = CliRunner().invoke(server_commands, ["status", "--watch", str(live.run)])
        assert watched.exit_code == 0
        for text in ("running", "SuperNodes: 2", *NAMES):
            assert text in watched.output
        ending = [threading.Thread(target=device.end) for device in devices]
        for thread in ending:
            thread.start()
        live.end_server()
        for thread in ending:
            thread.join()
        printed = [json.loads(line) for line in live.said().splitlines()]
        assert all(line["time"] and line["level"] and line["message"] for line in printed)
        rounds = [line for line in printed if line.get("event") == "round" and "digest" in line]
        assert rounds[0]["round"] == 1
