"""The limits of a device's owner: reasons and times of pauses, and the cost of work."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samara.client.forward.turns import Turns
from samara.client.limits.pauses import Pauses
from samara.client.limits.work_costs import COSTS_FILE, WorkCost, WorkCosts
from samara.devices.jetson import telemetry
from samara.devices.jetson.telemetry import Reading, Sensors
from samara.devices.live.limits import DeviceLimits, is_within, parse_hours
from samara.devices.live.sensor_watch import STALE_SECONDS, SensorWatch
from samara.devices.live.settings import OwnerSettings, split_owner_settings
from samara.shared.errors import ConfigError, PausedError, TrainerError

NOON = time(12)


@pytest.mark.parametrize(
    ("reading", "limits", "reason"),
    [
        (Reading(90.0, False, 99.0), {}, ""),
        (Reading(90.0), {"max_temperature": 85}, "90 °C is over 85 °C"),
        (Reading(80.0), {"max_temperature": 85}, ""),
        (Reading(None), {"max_temperature": 85}, "temperature cannot be read"),
        (Reading(on_mains=False), {"mains_only": True}, "this machine is not on mains power"),
        (Reading(on_mains=None), {"mains_only": True}, "this machine is not on mains power"),
        (Reading(on_mains=True), {"mains_only": True}, ""),
        (
            Reading(on_mains=False, battery=39.0),
            {"min_battery": 40},
            "the battery is at 39 %, under 40 %",
        ),
        (Reading(on_mains=False, battery=40.0), {"min_battery": 40}, ""),
        (Reading(on_mains=True, battery=3.0), {"min_battery": 40}, ""),
        (Reading(on_mains=False), {"min_battery": 40}, "charge cannot be read"),
        (Reading(load=80.0), {"idle_only": True}, "busy"),
        (Reading(load=None), {"idle_only": True}, "busy"),
        (Reading(load=10.0, on_mains=True), {"idle_only": True, "mains_only": True}, ""),
        (Reading(metered=True), {"unmetered_only": True}, "is metered"),
        (Reading(metered=None), {"unmetered_only": True}, "or it cannot be read"),
        (Reading(metered=False), {"unmetered_only": True}, ""),
        (Reading(), {"hours": "22:00-06:30"}, "the time 12:00 is not within 22:00-06:30"),
        (Reading(), {"hours": "08:00-12:01"}, ""),
    ],
)
def test_limits_pause_the_trainer(reading: Reading, limits: dict[str, Any], reason: str) -> None:
    found = DeviceLimits(**limits).pause_reason(reading, NOON)
    assert (reason in found) if reason else (found == "")
    assert DeviceLimits(**limits).limits_anything == bool(limits)


def test_hours_go_over_midnight() -> None:
    night, day = parse_hours("22:00-06:30"), parse_hours("06:30-22:00")
    for minutes in range(0, 24 * 60, 10):
        now = (datetime(2026, 1, 1) + timedelta(minutes=minutes)).time()
        assert is_within(night, now) != is_within(day, now)
    assert is_within(night, time(22))
    assert is_within(night, time(6, 29, 59))
    assert not is_within(night, time(6, 30))


@pytest.mark.parametrize("hours", ["22-6", "24:00-06:00", "10:00-10:00", "10:60-11:00", " ", "x"])
def test_hours_that_are_none_are_refused(hours: str) -> None:
    with pytest.raises(ConfigError, match="give two different times in the form 22:00-06:30"):
        DeviceLimits(hours=hours)


class Day:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, 12) + timedelta(seconds=self.seconds)


def test_a_watch_knows_the_reason_and_the_energy() -> None:
    day, readings = Day(), [Reading(70.0), Reading(90.0, watts=10.0), Reading(80.0, watts=20.0)]
    watch = SensorWatch(lambda: readings.pop(0), DeviceLimits(max_temperature=85), day, day.now)
    assert watch.joules is None
    watch.look()
    assert (watch.pause_reason(), watch.joules) == ("", None)
    day.seconds = 2.0
    watch.look()
    assert watch.pause_reason() == "90 °C is over 85 °C"
    assert watch.joules == 0.0
    day.seconds = 5.0
    assert watch.joules == 30.0
    watch.look()
    assert (watch.pause_reason(), watch.joules) == ("", 30.0)
    day.seconds = 6.0
    assert watch.joules == 50.0
    day.seconds += STALE_SECONDS
    assert watch.pause_reason() == "the sensors do not answer"


def test_a_watch_looks_on_its_own_and_survives_a_sensor_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import threading

    monkeypatch.setattr("samara.devices.live.sensor_watch.SECONDS_BETWEEN", 0.001)
    looks, enough = [0], threading.Event()

    def read() -> Reading:
        looks[0] += 1
        if looks[0] == 3:
            raise OSError("gone")
        if looks[0] > 4:
            enough.set()
        return Reading(90.0)

    watch = SensorWatch(read, DeviceLimits(max_temperature=85))
    with watch.watching():
        assert watch.pause_reason() == "90 °C is over 85 °C"
        assert enough.wait(30)
    assert "the sensors cannot be read" in caplog.text
    without = SensorWatch(lambda: Reading(90.0), DeviceLimits())
    with without.watching():
        assert without.pause_reason() == ""


@contextmanager
def nothing() -> Iterator[None]:
    yield


def test_an_hour_of_changing_conditions_delays_passes_and_changes_none() -> None:
    """Sensors, limits, watch, pauses and turns work together on a simulated clock."""
    day, random = Day(), np.random.default_rng(0)
    limits = DeviceLimits(max_temperature=85, min_battery=30, hours="12:05-13:00", idle_only=True)
    every = 60.0
    minutes = [
        Reading(
            temperature=float(random.uniform(60, 90)),
            on_mains=bool(random.random() < 0.5),
            battery=float(random.uniform(20, 100)),
            load=float(random.uniform(0, 60)),
        )
        for _ in range(75)
    ]
    watch = SensorWatch(lambda: minutes[int(day.seconds // every)], limits, day, day.now)
    watch.look()

    def move(seconds: float) -> None:
        """Advance the clock; the watch looks every second, whatever the trainer does."""
        goal = day.seconds + seconds
        while day.seconds < goal:
            day.seconds = min(goal, float(np.floor(day.seconds + 1)))
            if day.seconds == np.floor(day.seconds):
                watch.look()

    pauses = Pauses(watch.pause_reason, day, move)
    turns = Turns(pauses.before_pass)
    passes: list[tuple[float, float]] = []
    length = 0.7
    day.seconds = 0.0
    while day.seconds < 3500:
        try:
            with pauses.message(deadline=600.0):
                while len(passes) < 5000 and day.seconds < 3500:
                    with turns.training_pass():
                        begun = day.seconds
                        move(length)
                        passes.append((begun, day.seconds))
        except PausedError:
            move(1.0)
    assert len(passes) > 200

    def allowed(seconds: float) -> bool:
        moment = (datetime(2026, 1, 1, 12) + timedelta(seconds=seconds)).time()
        return not limits.pause_reason(minutes[int(seconds // every)], moment)

    changes = 0
    for begun, _ in passes:
        second = float(np.floor(begun))  # what the watch saw last
        assert allowed(second), f"a pass began at {begun} s over a limit"
    for minute in range(5, 58):
        was, is_ = allowed(minute * every - 1), allowed(minute * every + 1)
        changes += was != is_
        running = [end for begun, end in passes if begun < minute * every < end]
        if was and not is_:  # the pass that was running is the last one
            assert all(end <= minute * every + length + 1 for end in running)
    assert changes > 10
    assert pauses.seconds > 600


def test_a_pause_that_lasts_too_long_ends_the_message_and_no_other_work_waits() -> None:
    day, reason = Day(), ["hot"]
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        day.seconds += seconds

    pauses = Pauses(lambda: reason[0], day, wait)
    pauses.before_pass()
    assert not waited
    with pytest.raises(PausedError, match="paused: hot"), pauses.message(5.0):
        raise AssertionError
    reason[0] = ""
    with pauses.message(5.0):
        pauses.before_pass()
        reason[0] = "hot"
        with pytest.raises(PausedError, match="paused for 5 s, longer than the server waits: hot"):
            pauses.before_pass()
    assert sum(waited) == pytest.approx(5.0) == pauses.seconds
    pauses.before_pass()
    assert sum(waited) == pytest.approx(5.0)


def test_the_load_of_others_is_not_this_process_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from samara.devices.jetson.telemetry import _Counters

    monkeypatch.setattr("os.cpu_count", lambda: 4)
    before = _Counters(10.0, 100.0, 50.0, 7.0)
    assert _Counters(20.0, 130.0, 60.0, 27.0).load_since(before) == 50.0
    assert _Counters(20.0, 110.0, 60.0, None).load_since(before) == 0.0
    assert _Counters(20.0, 500.0, 50.0, None).load_since(before) == 100.0
    assert before.load_since(before) is None
    assert _Counters(20.0, 0.0, 0.0, 27.0).watts_since(before) == 2.0
    assert _Counters(20.0, 0.0, 0.0, 1.0).watts_since(before) is None
    assert _Counters(20.0, 0.0, 0.0, None).watts_since(before) is None


def test_package_energy_and_the_network_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, microjoules in (("intel-rapl:0", "5000000"), ("intel-rapl:0:0", "1"), ("x", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(microjoules + "\n")
    monkeypatch.setattr(telemetry, "_POWERCAP", tmp_path)
    assert telemetry._package_joules() == 5.0
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert telemetry._package_joules() is None
    asked: list[Any] = []
    answer: Callable[[Any], str] = lambda command: asked.append(command) or "u 4\n"  # noqa: E731
    monkeypatch.setattr(telemetry, "_output_of", answer)
    sensors = Sensors(reads_network=True)
    assert sensors.read().metered is False
    assert sensors.read().metered is False
    assert len(asked) == 1
    assert Sensors().read().metered is None
    assert len(asked) == 1


def test_this_machine_can_be_read() -> None:
    sensors = Sensors()
    reading = sensors.read()
    assert reading.load is None or 0 <= reading.load <= 100


def test_a_machine_without_power_supplies_is_on_mains(monkeypatch: pytest.MonkeyPatch) -> None:
    def battery() -> None:
        raise FileNotFoundError("/sys/class/power_supply")

    monkeypatch.setattr(telemetry.psutil, "sensors_battery", battery)
    reading = Sensors().read()
    assert (reading.on_mains, reading.battery) == (True, None)


def test_costs_add_up_over_restarts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, cost = bytes(8), WorkCost(1, 2.0, 0.5, 10.0)
    WorkCosts(tmp_path).add(run, cost)
    WorkCosts(tmp_path).add(run, WorkCost(0, 1.0, 0.0, 0.0))
    assert WorkCosts(tmp_path).read() == {run.hex(): WorkCost(1, 3.0, 0.5, 10.0)}
    (tmp_path / COSTS_FILE).write_text("{")
    assert WorkCosts(tmp_path).read() == {}
    assert "the costs start at 0 again" in caplog.text
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainerError, match="cannot be written"):
        WorkCosts(tmp_path / "file" / "x").add(run, cost)


def test_settings_of_the_owner_are_told_from_the_others() -> None:
    given = ["owner.hours=22:00-06:30", "threads=1", "owner.idle-io=true", "owner.power-mode=15"]
    owner, others = split_owner_settings(given)
    assert others == ["threads=1"]
    assert owner == OwnerSettings(hours="22:00-06:30", idle_io=True, power_mode="15")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("owner.hourz=1", r"owner\.hourz: there is no such setting; use one of owner\.max-temp"),
        ("owner.nice=20", r"owner\.nice=20: .*less than or equal to 19"),
        ("owner.min-battery=x", r"owner\.min-battery=x: .*valid number"),
        ("owner.hours=9", r"owner\.hours=9: "),
    ],
)
def test_a_wrong_setting_of_the_owner_is_named(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split_owner_settings([assignment])
