"""A board and three phones mask their reports; each is a process and uses a gateway over TLS."""

import pytest
from phones import BOARD, PHONES, make_phones

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from benchmarks.scale.mixed_run import (
    GATEWAY,
    MODEL,
    OPEN,
    TASK,
    samara,
    start_gateway,
    start_phone,
    write_messages,
)
from samara.client.limits.privacy_budget import ChargeLog
from samara.server.live.keys import KEYS_FOLDER, ClientKeys
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.server.rounds.secure_aggregation import MASKED_ROUNDS_FILE
from samara.shared.results.result import RunResult

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SETTINGS = {
    "rounds": 3,
    "steps": 1,
    "queries": 8,
    "learning-rate": 0.1,
    "adapter.layers": "readout",
    "method": "global",
    "personal.rounds": 0,
    "evaluate.every": 0,
    "seed-policy": "shared",
    "aggregation.rule": "mean",
    "cohort.minimum": 3,
    "cohort.available": 1 + len(PHONES),
    "cohort.timeout": 120.0,
    "privacy.mode": "distributed",
    "privacy.noise-multiplier": 0.5,
    "privacy.honest-share": 0.7,
    "privacy.secure-aggregation": True,
}


def test_masked_reports_of_phones_are_summed_also_without_one_that_is_killed(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    folder = tmp_path_factory.mktemp("m")  # short: sockets lie in it
    data = write_messages(folder, 0)
    ClientKeys(folder / "run" / KEYS_FOLDER).create(GATEWAY, gateway=True)
    with LiveRun(folder, SETTINGS, [BOARD, GATEWAY], free_address()) as live:
        make_phones(live, data)
        door, releases = free_address(), live.run / RELEASES_FILE
        live.serve()
        start_gateway(live, live.address, door)
        live.wait(lambda: OPEN in live.said(GATEWAY), "the gateway")
        for name in PHONES:
            start_phone(live, name, door)
        what = ("--model", MODEL, "--data", str(data[BOARD]), "--task", TASK)
        live.start_client(BOARD, None, *what, "--set", "threads=1")
        live.wait(releases.exists, "the first release")
        gone = live.clients[PHONES[-1]]
        gone.kill()
        gone.wait()
        assert live.server is not None
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server.returncode == 0, live.said()[-2000:]
        live.check()
        sums = [one.sums[0].clients for one in read_releases(releases)]
        assert sums[0] == 4
        assert sums[-1] == 3
        assert len(sums) == SETTINGS["rounds"]
        assert [event.reports for event in RunResult.read(live.run).rounds] == sums
        assert len((live.run / MASKED_ROUNDS_FILE).read_text().splitlines()) == len(sums)
        for name in (BOARD, *PHONES[:-1]):
            charges = ChargeLog(live.home(name)).read()
            assert [charge.round for charge in charges] == [1, 2, 3]
            assert all(charge.mode == "distributed" for charge in charges)
        assert "every digest reproduced" in samara(
            folder, "server", "check", "--replay", str(live.run)
        )
