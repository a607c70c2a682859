"""Devices on a virtual clock: batteries, jobs, and times at which devices are reachable."""

from dataclasses import replace
from typing import Any

import pytest

from samara.devices.hardware.estimate import estimate_step
from samara.devices.hardware.model_shape import model_shape
from samara.devices.hardware.profile import load_device, load_link
from samara.devices.hardware.roofline import Workload
from samara.shared.errors import ConfigError, TrainingError
from samara.shared.settings.config import RunConfig
from samara.shared.settings.fleet import DeviceGroup
from samara.simulations.engines.in_process import FIRST_CLIENT_NODE
from samara.simulations.fleet.device import Device, counts_of
from samara.simulations.fleet.job import Job, job
from samara.simulations.fleet.virtual_clock import VirtualClock
from samara.simulations.report.fleet import clock_of, span_of

HOUR = 3600.0
NOON = 12 * HOUR


def make_device(number: int = 0, profile: str = "orin-nano-8gb", **group: Any) -> Device:
    """A device that would run TinyLlama, on a link without random losses."""
    settings: dict[str, Any] = {"device": profile, "share": 1.0, "link": "lte"}
    own = DeviceGroup.model_validate(settings | group)
    link = load_link(own.link).model_copy(update={"jitter": 0.0, "loss": 0.0})
    if own.available:
        link = link.model_copy(update={"available": list(own.available)})
    device = load_device(profile)
    work = Workload(sequence=32, batch=4, queries=4, quantization=own.quantization, supervised=1)
    shape = model_shape("tinyllama-1.1b")
    cost, measuring = (
        estimate_step(shape, device, replace(work, curvature=curvature))
        for curvature in (False, True)
    )
    return Device(number, own, device, link, own.charging, cost, measuring, 1, own.battery)


def done(device: Device, at: float = NOON, seed: int = 0, charge: float | None = None) -> Job:
    return job(device, at, 1_000, 100, 5, device.charge if charge is None else charge, [seed])


def test_a_job_is_receiving_computing_and_sending() -> None:
    device = make_device(quantization="nf4")
    found = done(device)
    assert found.outcome == "reported"
    assert found.compute == pytest.approx(5 * device.step_seconds)
    assert found.transfer > 2 * device.link.latency
    assert found.ended == pytest.approx(NOON + found.transfer + found.compute)
    assert found.joules == pytest.approx(15 * found.compute)
    assert found.peak_bytes == device.estimate.memory.total
    assert done(device) == found


def test_more_passes_take_longer_but_draw_their_adapters_once() -> None:
    one = make_device(quantization="nf4")
    two = replace(one, passes=2)
    adapters = one.estimate.time.adapters
    assert adapters > 0
    assert two.step_seconds == pytest.approx(2 * one.step_seconds - adapters)


def test_steps_that_measure_curvature_take_longer() -> None:
    device = make_device(quantization="nf4")
    extra = device.measuring.time.total - device.step_seconds
    assert 0 < extra < device.step_seconds
    found = job(device, NOON, 1_000, 100, 5, device.charge, [0], measuring=2)
    assert found.compute == pytest.approx(5 * device.step_seconds + 2 * extra)


def test_a_model_that_does_not_fit_ends_the_job_at_once_with_its_peak() -> None:
    found = done(make_device(profile="orin-nano-4gb", quantization="fp32"))
    assert found.outcome == "out of memory"
    assert found.compute == 0
    assert found.peak_bytes == load_device("orin-nano-4gb").usable_bytes


def test_dropout_and_slowness_have_their_chances() -> None:
    device = make_device(quantization="nf4", dropout=0.3, slow=0.5, slowdown=4.0)
    jobs = [done(device, seed=seed) for seed in range(400)]
    dropped = [j for j in jobs if j.outcome == "dropped out"]
    assert 80 < len(dropped) < 160
    whole = 5 * device.step_seconds
    assert all(j.compute < 4 * whole and j.bytes_up == 0 for j in dropped)
    slow = [j for j in jobs if j.slow and j.outcome == "reported"]
    assert 100 < len(slow) < 180
    assert {round(j.compute / whole, 6) for j in slow} == {4.0}


def test_a_report_waits_for_the_link() -> None:
    device = make_device(quantization="nf4", available=[[22, 31]])
    found = done(device, at=31 * HOUR - 2.0)
    assert found.outcome == "reported"
    assert found.waited > 14 * HOUR
    assert found.ended > 46 * HOUR


def test_a_battery_is_drained_by_work_and_owner_and_filled_by_the_charger() -> None:
    device = make_device(
        quantization="nf4", battery=20.0, charging=[[22, 30]], charger=10.0, use=0.5
    )
    assert device.charge_after(20.0, NOON, NOON + 4 * HOUR) == pytest.approx(18.0)
    assert device.charge_after(1.0, NOON, 20 * HOUR) == 0.0
    assert device.charge_after(10.0, 21 * HOUR, 23 * HOUR) == pytest.approx(10 - 0.5 + 9.5)
    assert device.charge_after(10.0, 21 * HOUR, 29 * HOUR) == 20.0
    left = done(device, charge=15.0)
    assert left.charge < 15.0 - 15 * left.compute / HOUR


def test_work_ends_where_the_owners_part_of_the_battery_begins() -> None:
    device = make_device(quantization="nf4", battery=1.0, reserve=0.5)
    found = done(device, charge=0.501)
    assert found.outcome == "out of battery"
    assert found.joules == pytest.approx(0.001 * HOUR)
    assert not device.is_free(NOON, 0.4)
    assert device.next_change(NOON, 0.4) == float("inf")


def test_shares_become_whole_devices() -> None:
    def counts(clients: int, *shares: float) -> list[int]:
        groups = [DeviceGroup(device="laptop", share=share) for share in shares]
        return counts_of(clients, groups)

    assert counts(200, 20, 40, 60, 80) == [20, 40, 60, 80]
    assert counts(10, 1, 1, 1) == [4, 3, 3]
    assert sum(counts(7, 20, 40, 60, 80)) == 7


def test_the_clock_goes_to_the_next_report_or_as_far_as_allowed() -> None:
    devices = [make_device(0, quantization="nf4"), make_device(1, quantization="fp16")]
    clock = VirtualClock(devices, 0, 12.0)
    jobs = [clock.ask(number, 1, 1_000, 100, 5) for number in (0, 1)]
    first, second = sorted(job.ended for job in jobs)
    clock.wait(1.0)
    assert clock.now() == NOON + 1.0
    clock.wait(1e6)
    assert clock.now() == first
    assert any(clock.is_reachable(FIRST_CLIENT_NODE + number) for number in range(2))
    clock.wait(1e6)
    assert clock.now() == second
    told = clock.finish_round()["fleet"]
    assert (told["begun"], told["ended"]) == (NOON, second)
    waited = [told["devices"][str(job.device)]["waiting"] for job in jobs]
    assert sorted(waited) == pytest.approx([0.0, second - first], abs=1e-5)


def test_who_is_out_of_reach_is_waited_for() -> None:
    clock = VirtualClock([make_device(available=[[22, 31]], quantization="nf4")], 0, 12.0)
    assert not clock.is_reachable(FIRST_CLIENT_NODE)
    clock.wait(1e6)
    assert clock.now() == 22 * HOUR
    assert clock.is_reachable(FIRST_CLIENT_NODE)


def test_rounds_keep_their_distance() -> None:
    clock = VirtualClock([make_device(quantization="nf4")], 0, 12.0, every=HOUR)
    clock.ask(0, 1, 1_000, 100, 1)
    clock.wait(1e6)
    told = clock.finish_round()
    assert told["fleet"]["ended"] < NOON + HOUR == clock.now()
    assert VirtualClock([make_device()], 0, 12.0, every=HOUR, rounds=[told]).now() == clock.now()
    clock.ask(0, 2, 1_000, 100, 1)
    assert clock.finish_round()["fleet"]["begun"] == NOON + HOUR


def test_a_fleet_that_is_never_there_is_an_error() -> None:
    dead = make_device(battery=1.0, use=1.0, quantization="nf4")
    clock = VirtualClock([replace(dead, charge=0.0)], 0, 12.0)
    with pytest.raises(TrainingError, match=r"can ever take part again; change fleet\.devices"):
        clock.wait(float("inf"))


def test_a_continued_fleet_goes_on_where_its_rounds_ended() -> None:
    devices = [make_device(0, quantization="nf4", battery=20.0, charging=[[22, 30]])]
    clock = VirtualClock(devices, 0, 12.0)
    clock.ask(0, 1, 1_000, 100, 5)
    clock.wait(1e6)
    rounds = [clock.finish_round()]
    again = VirtualClock(devices, 0, 12.0, rounds=rounds)
    assert again.now() == clock.now()
    assert again.ask(0, 2, 1_000, 100, 5).charge == pytest.approx(
        clock.ask(0, 2, 1_000, 100, 5).charge, abs=1e-5
    )
    assert again.finish_run(rounds)["fleet"]["devices"]["0"]["outcomes"] == {"reported": 1}


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, "0.0 s"), (5.84, "5.8 s"), (119.0, "119.0 s"), (120.0, "2.0 min"), (85_500.0, "23.8 h")],
)
def test_a_span_is_told_in_the_unit_that_suits_it(seconds: float, told: str) -> None:
    assert span_of(seconds) == told


def test_a_moment_is_told_to_the_second() -> None:
    assert clock_of(NOON + 5.84) == "day 1, 12:00:05"
    assert clock_of(24 * HOUR + 61) == "day 2, 00:01:01"


def test_mistakes_in_groups_are_reported_together() -> None:
    wrong = [{"devise": "laptop", "share": 0, "available": [[25, 26]]}, {"device": "laptop"}]
    with pytest.raises(ConfigError) as caught:
        RunConfig.of({"fleet.devices": wrong, "fleet.begins": 24}, "here")
    text = str(caught.value)
    for part in (
        "5 mistakes",
        "fleet.devices.0.device: Field required",
        "fleet.devices.0.share: Input should be greater than 0 (got 0)",
        "fleet.devices.0.devise: there is no such setting",
        "fleet.devices.1.share: Field required",
        "fleet.begins: Input should be less than 24",
    ):
        assert part in text
    with pytest.raises(ConfigError, match=r"available: \[25, 26\]: the first hour must be"):
        RunConfig.of(
            {"fleet.devices": [{"device": "laptop", "share": 1, "available": [[25, 26]]}]}, "here"
        )


def test_groups_survive_as_text() -> None:
    groups = [{"device": "laptop", "share": 2, "available": [[22, 31]], "quantization": "nf4"}]
    config = RunConfig.of({"fleet.devices": groups}, "here")
    assert RunConfig.of(config.flat(), "again") == config
    with pytest.raises(ConfigError, match=r"fleet\.devices: Input should be tables"):
        RunConfig.of({"fleet.devices": "[{"}, "here")
