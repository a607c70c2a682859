"""A private run whose process gets kill -9 between two frames, or before or after a write."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from federations import Settings
from forked import LOADED
from helpers import ROOT
from killed_runs import CLIENTS, ROUNDS, STEPS, private_run

from samara.client.limits.privacy_budget import Charge, ChargeLog
from samara.server.rounds.releases import RELEASES_FILE, read_releases
from samara.shared.protocol.frames.vector_report import NoisedVectorReport
from samara.shared.protocol.ledger.reading import read_ledger
from samara.shared.results.result import RunResult
from samara.shared.settings.config import RunConfig
from samara.simulations.simulate import simulate

MOMENTS = [
    f"{when} {step} {number}"
    for step, (_, _, calls) in STEPS.items()
    for number in range(calls + 1, 2 * calls + 1)
    for when in ("before", "after")
]
"""All moments of the second round."""
CONTINUES = ("before charge 4", "after release 2")
RUN = """
import json, sys
from killed_runs import die_at, private_run
from samara.simulations.simulate import simulate
if sys.argv[2]:
    die_at(sys.argv[2])
simulate(private_run(json.loads(sys.argv[1])))
"""


def charges_of(config: RunConfig) -> list[list[Charge]]:
    return [ChargeLog(Path(config.out) / "clients" / str(n)).read() for n in range(CLIENTS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(moment, marks=() if moment in CONTINUES else pytest.mark.exhaustive)
        for moment in MOMENTS
    ],
)
def test_a_killed_run_has_each_report_noise_and_charge_once(
    settings: Settings, moment: str
) -> None:
    config = private_run(settings)
    path = f"{ROOT}:{ROOT / 'tests'}"
    killed = subprocess.run(
        [sys.executable, "-c", LOADED + RUN, json.dumps(settings), moment],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    file = Path(config.out) / RELEASES_FILE
    charged, released = charges_of(config), file.read_bytes()
    result = RunResult.read(simulate(config))
    assert [event.reports for event in result.rounds] == [CLIENTS] * ROUNDS
    releases = read_releases(file)
    assert file.read_bytes().startswith(released)
    assert [release.round for release in releases] == [1, 2, 3]
    assert [r.delta.token for r in read_ledger(Path(config.out) / "ledger")] == [
        release.token for release in releases
    ]
    for before, now in zip(charged, charges_of(config), strict=True):
        assert now[: len(before)] == before
        assert [charge.round for charge in now] == [1, 2, 3]
    for number, release in enumerate(releases):
        reports = [NoisedVectorReport.decode(own[number].report) for own in charges_of(config)]
        total = np.sum([report.vector for report in reports], axis=0)
        assert release.sums[0].total.tolist() == total.tolist()
