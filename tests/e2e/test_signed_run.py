"""Clients with a signed scenario over TLS take part in the same run as without, and in no other."""

import json
import shutil
from typing import Any

import pytest
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import samara
from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.server.live.keys import KEYS_FOLDER

pytestmark = pytest.mark.slow

NAMES = ["kitchen", "garden"]
SETTINGS: dict[str, Any] = {
    "adapter.layers": "top:1",
    "rounds": 2,
    **ONE_SMALL_STEP,
    "cohort.available": 2,
}


def assignments(settings: dict[str, Any]) -> list[str]:
    return [word for k, v in settings.items() for word in ("--set", f"{k}={json.dumps(v)}")]


def start(live: LiveRun, *options: str) -> None:
    live.serve()
    for name in NAMES:
        live.start_client(name, None, "--set", "threads=1", *options)


def finish(live: LiveRun) -> str:
    """Wait for the end of a run and of its clients; return the final digest."""
    live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
    assert live.server is not None
    assert live.server.returncode == 0, live.said()[-2000:]
    live.check()
    result = json.loads((live.run / "result.json").read_text(encoding="utf-8"))
    assert [event["reports"] for event in result["rounds"]] == [2, 2]
    assert "the run is finished; informing 2 connected clients" in live.said()
    for name, client in live.clients.items():
        live.wait(lambda client=client: client.poll() is not None, f"the end of {name}")
        assert client.returncode == 0, live.said(name)[-2000:]
        last = live.said(name).splitlines()[-1]
        assert f"{name}: the run is finished, and this client keeps its model" in last
        assert f'samara client ask "a text" --home {live.home(name)}`' in last
    return str(result["final_digest"])


def test_a_run_with_signed_scenarios_ends_as_one_without_and_another_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("o")  # short: sockets lie in it
    address = free_address()
    for place in ("plain", "signed", "foreign"):
        (folder / place).mkdir()
    with LiveRun(folder / "plain", SETTINGS, NAMES, address) as live:
        start(live)
        plain = finish(live)
        assert "no scenario is signed: the server decides" in live.said("kitchen")
        shown = samara(
            folder, "client", "status", "--name", "kitchen", "--home", str(live.home("kitchen"))
        )
        assert "no signed scenario: the server decides on settings and instructions" in shown
        keys = live.run / KEYS_FOLDER

    key, file = folder / "operator.key", folder / "field.signed"
    made = samara(folder, "server", "sign", "--make-key", str(key))
    operator = made.split("key of operator ")[1][:16]
    shown = samara(
        folder,
        *("server", "sign", "--key", str(key), "--out", str(file)),
        *assignments(SETTINGS),
    )
    assert "1 steps of 2 directions, different for every client, on 4 examples" in shown
    assert "whatever the server asks: 4 projected gradients" in shown
    shutil.copytree(keys, folder / "signed" / "run" / KEYS_FOLDER)
    with LiveRun(folder / "signed", SETTINGS, NAMES, address) as live:
        start(live, "--scenario", str(file))
        assert finish(live) == plain
        for name in NAMES:
            assert f"field.signed: signed by operator {operator}" in live.said(name)
            assert f"1 signed by operator {operator}" in live.said(name)

    shutil.copytree(keys, folder / "foreign" / "run" / KEYS_FOLDER)
    for name in NAMES:  # the same clients, which keep the scenario
        shutil.move(folder / "signed" / name, folder / "foreign" / name)
    with LiveRun(folder / "foreign", SETTINGS | {"batch": 1}, NAMES, address) as live:
        start(live)
        log = live.run / "log.jsonl"
        live.wait(lambda: log.read_text().count("signed by the operator") >= 2, "the refusals")
        for name in NAMES:
            refused = ScenarioFolder(live.home(name)).read_refused()
            assert refused is not None
            assert refused.reason == "settings other than the signed ones: batch = 1 and not 4"
            assert refused.reason in live.said(name)
        assert not (live.run / "ledger").exists()
        shown = samara(
            folder, "client", "status", "--name", "garden", "--home", str(live.home("garden"))
        )
        assert "batch = 1 and not 4" in " ".join(shown.split())
