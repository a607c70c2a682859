"""The round of the common intercept in live processes, and its repetition in a simulation."""

import pytest
from live import ONE_SMALL_STEP

from benchmarks.faults.live_run import LiveRun
from benchmarks.faults.ports import free_address
from samara.server.store import LEDGER_FOLDER
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.protocol.replay import DenseValues
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

NAMES = ["garden", "kitchen"]
SETTINGS = {
    **ONE_SMALL_STEP,
    "method": "readout",
    "adapter.layers": "readout",
    "adapter.label-bias": True,
    "rounds": 2,
    "cohort.available": 2,
    "ledger.snapshot-every": 0,
}


@pytest.mark.parametrize("prior", ["own", "common"])
def test_live_clients_estimate_a_common_intercept(
    prior: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = SETTINGS | {"personal.prior": prior}
    folder = tmp_path_factory.mktemp("i")  # short: sockets lie in it
    with LiveRun(folder, settings, NAMES, free_address()) as live:
        live.serve()
        for seed, name in enumerate(NAMES):
            own = ("--set", "threads=1", "--set", f"data.seed={seed}")
            live.start_client(name, None, *own)
        live.wait(lambda: live.server and live.server.poll() is not None, "the end of the run")
        assert live.server is not None
        assert live.server.returncode == 0, live.said()[-2000:]
        assert live.check() == SETTINGS["rounds"] + 1
    result = RunResult.read(live.run)
    assert result.final_round == SETTINGS["rounds"] + 1
    *_, last = read_ledger(live.run / LEDGER_FOLDER)
    assert isinstance(last.delta.entries[0], DenseValues)
    assert (last.delta.common_deviation is not None) == (prior == "common")
    assert {c.client for c in last.delta.contributors} == set(live.devices.values())

    config = RunConfig.of(settings | {"out": str(folder / "again")}, "here")
    again = simulate(config, cohorts_from=live.run, homes=list(map(live.home, NAMES)))
    assert RunResult.read(again).final_digest == result.final_digest
