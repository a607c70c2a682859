"""A device joins a live server by its invitation's line, and takes part with the received files."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import samara
from samara.server.live.run_supervisor import FLOWER_FOLDER
from samara.server.live.server_port import read_port

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "adapter.layers": "top:1",
    "rounds": 1,
    **ONE_SMALL_STEP,
    "cohort.available": 1,
    "cohort.minimum": 1,
}


def test_a_client_that_joined_by_one_line_takes_part(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("o")  # short: sockets lie in it
    address = free_address()
    key, signed = folder / "operator.key", folder / "field.signed"
    samara(folder, "server", "sign", "--make-key", str(key))
    settings = [word for k, v in SETTINGS.items() for word in ("--set", f"{k}={json.dumps(v)}")]
    samara(folder, "server", "sign", "--key", str(key), "--out", str(signed), *settings)
    with LiveRun(folder, SETTINGS, [], address) as live:
        live.start_server()
        live.wait(lambda: "listening on" in live.said(), "the server")
        assert address == f"127.0.0.1:{read_port(live.run / FLOWER_FOLDER)}"
        asked = ["invite", "kitchen", "--run", str(live.run), "--address", address]
        line = samara(folder, "server", *asked, "--scenario", str(signed)).splitlines()[0]
        home = ["--home", str(live.home("kitchen"))]
        words = shlex.split(line)[1:]
        joined = samara(folder, *words, *home)
        assert "signed by operator" in joined
        program, *start = shlex.split(joined.splitlines()[-1])
        assert program == "samara"
        live.start("kitchen", [*start, "--set", "threads=1"])
        server = live.server
        assert server is not None
        live.wait(lambda: server.poll() is not None, "the end of the run")
        assert server.returncode == 0, live.said()[-2000:]
        live.check()
        assert "1 signed by operator" in live.said("kitchen")
        assert "has joined as kitchen" in Path(live.run / "log.jsonl").read_text()
        result = json.loads((live.run / "result.json").read_text(encoding="utf-8"))
        assert [event["reports"] for event in result["rounds"]] == [1]
        assert list(result["names"].values()) == ["kitchen"]
        assert "1 reports from kitchen," in live.said()
        status = samara(folder, "client", "status", *home)
        assert re.search(r"preflight of .* UTC: \d+ of \d+ checks passed", status)
        assert samara(folder, "compare", str(live.run))
