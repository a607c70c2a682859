"""An hour of changing conditions, compressed: a real trainer, simulated sensors and clock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from federations import Settings, config_of, ledger_of
from flwr.app import Message
from residents import Unhurried, is_idle, resident, rounds_of, under

from samara.client.forward.turns import Turns
from samara.client.limits.pauses import Pauses
from samara.client.limits.work_costs import WorkCosts
from samara.client.trainer.idle_work import IdleWork
from samara.client.trainer.trainer_service import serve_trainer
from samara.devices.jetson.telemetry import Reading
from samara.devices.live.limits import DeviceLimits
from samara.devices.live.pause_log import PauseLog, read_pauses
from samara.devices.live.sensor_watch import SensorWatch
from samara.server.app import serve
from samara.server.transport.messages import read_frame
from samara.shared.errors import RefusalCode
from samara.shared.protocol.frames.refusal import Refusal
from samara.shared.protocol.wire import Kind, kind_of

PASS_SECONDS = 29.0
"""Duration of a forward pass on the simulated clock."""
LIMITS = DeviceLimits(
    max_temperature=85,
    min_battery=30,
    idle_only=True,
    unmetered_only=True,
    hours="12:02-23:00",
)


class Hour:
    """A device whose surroundings change every minute, with a clock that tests advance.

    Attributes:
        seconds: seconds since noon.
        begun: when each forward pass began.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        random = np.random.default_rng(seed)
        self.minutes = [
            Reading(
                temperature=float(random.uniform(60, 88)),
                on_mains=bool(random.random() < 0.6),
                battery=float(random.uniform(20, 100)),
                load=float(random.uniform(0, 55)),
                metered=bool(random.random() < 0.06),
            )
            for _ in range(240)
        ]
        self.seconds, self.begun = 0.0, list[float]()
        self._lock = threading.RLock()
        self.watch = SensorWatch(self.reading, LIMITS, self, self.now, PauseLog(folder, self).note)
        self.watch.look()

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, 12) + timedelta(seconds=self.seconds)

    def reading(self) -> Reading:
        return self.minutes[int(self.seconds // 60)]

    def allows(self, seconds: float) -> bool:
        moment = (datetime(2026, 1, 1, 12) + timedelta(seconds=seconds)).time()
        return not LIMITS.pause_reason(self.minutes[int(seconds // 60)], moment)

    def move(self, seconds: float) -> None:
        """Let time pass; the watch looks every second, like its real thread."""
        with self._lock:
            goal = self.seconds + seconds
            while self.seconds < goal:
                self.seconds = min(goal, float(np.floor(self.seconds + 1)))
                if self.seconds == np.floor(self.seconds):
                    self.watch.look()

    def is_over(self) -> bool:
        """Let 5 s pass if work is paused, then return whether work is allowed."""
        with self._lock:  # no time passes for the other thread once work is allowed
            if self.watch.pause_reason():
                self.move(5.0)
            return not self.watch.pause_reason()


class TimedTurns(Turns):
    """Turns in which every pass of training takes time on a simulated clock."""

    hour: Hour

    @contextmanager
    def training_pass(self) -> Iterator[None]:
        is_inner = self._training
        with super().training_pass():
            if not is_inner:
                self.hour.begun.append(self.hour.seconds)
            yield
            if not is_inner:
                self.hour.move(PASS_SECONDS)


class Patient(Unhurried):
    """A server that repeats a message that was refused because of a pause, once work is allowed.

    Attributes:
        refused: number of refusals.
    """

    hour: Hour | None = None
    refused = 0

    def _deliver(self, message: Message) -> Message:
        while True:
            reply = super()._deliver(message)
            frame = read_frame(reply)
            if kind_of(frame) is not Kind.REFUSAL:
                return reply
            assert Refusal.decode(frame).code == RefusalCode.PAUSED
            assert self.hour is not None
            Patient.refused += 1
            while not self.hour.is_over():
                pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_an_hour_of_changing_conditions_loses_nothing_and_changes_no_bit(
    seed: int,
    settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = tmp_path_factory.mktemp("c")
    often = partial(IdleWork, seconds=0.02)
    monkeypatch.setattr("samara.client.trainer.trainer_service.IdleWork", often)
    monkeypatch.setattr("live._POLL", 0.01)
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    own = {"rounds": 12, "personal.rounds": 2, "personal.learning-rate": 0.1, "micro-batch": 2}
    when = {"personal.when": "every 3 rounds", "evaluate.every": 4, "cohort.timeout": 3000.0}
    config = config_of(settings | theirs | own | when, cohort__available=1, seed=seed)

    def run(name: str, hour: Hour | None) -> dict[str, bytes]:
        mine, socket = resident(settings, 7, short / name), short / f"{name}.sock"
        reason = hour.watch.pause_reason if hour else lambda: ""
        out = config_of(config.flat(), out=str(short / f"run-{name}"))
        with serve_trainer(lambda: mine, socket, reason):
            Patient.hour = hour
            ready = lambda: (hour is None or hour.is_over()) and is_idle(short / name)  # noqa: E731
            return ledger_of(serve(out, Patient([socket], out, ready)))

    steady = run("steady", None)
    (short / "moody").mkdir()
    hour = Hour(seed, short / "moody")
    TimedTurns.hour = hour
    monkeypatch.setattr("samara.client.trainer.trainer_service.Turns", TimedTurns)
    monkeypatch.setattr(
        "samara.client.trainer.trainer_service.Pauses",
        lambda reason: Pauses(reason, hour, hour.move),
    )
    moody = run("moody", hour)
    assert moody == steady
    assert rounds_of(under(short / "moody")) == rounds_of(under(short / "steady"))
    late = [begun for begun in hour.begun if not hour.allows(np.floor(begun))]
    assert not late, "a pass began although the watch had seen that a limit is exceeded"
    pauses = read_pauses(short / "moody")
    [cost] = WorkCosts(short / "moody").read().values()
    overrun = [
        begun + PASS_SECONDS - pause.begun
        for pause in pauses
        for begun in hour.begun
        if begun < pause.begun < begun + PASS_SECONDS
    ]
    assert hour.seconds > 3600
    assert len(pauses) > 10
    assert cost.paused > 120
    assert 0 < max(overrun) < PASS_SECONDS
    print(
        f"seed {seed}: {hour.seconds / 60:.0f} minutes, {len(hour.begun)} passes, {len(pauses)} "
        f"pauses of {sum(pause.seconds or 0 for pause in pauses) / 60:.0f} minutes, of which "
        f"{cost.paused / 60:.0f} in messages; {Patient.refused} messages refused; {len(overrun)} "
        f"began within a pass, which ended {max(overrun):.1f} s later at most"
    )
