"""A private run whose process gets kill -9 between any two frames, or on either side of a write."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Settings
from flwr.app import Message, MessageType
from test_local_privacy import ROOT, private

from client.protocol.privacy_budget import Charge, ChargeLog
from server.rounds.masking_exchange import MASKING_MESSAGE
from server.rounds.releases import RELEASES_FILE, ReleaseLog, read_releases
from shared.config import RunConfig
from shared.frames.vector_report import NoisedVectorReport
from shared.ledger.ledger import Ledger
from shared.ledger.reading import read_ledger
from shared.result import RunResult
from shared.step_record import RecordedStepSize
from simulations.engine import InProcessGrid
from simulations.simulate import simulate

CLIENTS, ROUNDS = 2, 3
OF_ROUNDS = MessageType.TRAIN, MASKING_MESSAGE
Steps = dict[str, tuple[type, str, int]]
STEPS: Steps = {
    "frame": (InProcessGrid, "_deliver", CLIENTS),
    "charge": (ChargeLog, "add", CLIENTS),
    "release": (ReleaseLog, "add", 1),
    "size": (RecordedStepSize, "record", 1),
    "ledger": (Ledger, "append", 1),
}
"""What delivers an instruction and its report, what writes, and how often in a round."""
MOMENTS = [
    f"{when} {step} {number}"
    for step, (_, _, calls) in STEPS.items()
    for number in range(calls + 1, 2 * calls + 1)
    for when in ("before", "after")
]
"""All of the second round."""
CONTINUES = ("before charge 4", "after release 2")
RUN = """
import json, sys
from test_killed_private_runs import die_at, private_run, simulate
if sys.argv[2]:
    die_at(sys.argv[2])
simulate(private_run(json.loads(sys.argv[1])))
"""


def private_run(settings: Settings) -> RunConfig:
    """A run whose clients add the noise, and keep what they have sent and spent."""
    own: dict[str, Any] = {"data__clients": CLIENTS, "cohort__minimum": CLIENTS, "rounds": ROUNDS}
    return private(settings, "distributed", **own, data__epsilon_limit=1e6)


def die_at(moment: str, steps: Steps = STEPS) -> None:
    """Have this process get kill -9 before or after a call of a step, of frames those of rounds."""
    when, step, number = moment.split()
    kind, name, _ = steps[step]
    plain, calls = getattr(kind, name), itertools.count(1)

    def dies(*arguments: Any, **options: Any) -> Any:
        _, first, *_ = arguments
        is_other = isinstance(first, Message) and first.metadata.message_type not in OF_ROUNDS
        is_it = not is_other and next(calls) == int(number)
        if is_it and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = plain(*arguments, **options)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, name, dies)


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
    path = f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests/integration'}"
    killed = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(settings), moment],
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
