"""Profiles: the shipped profiles, and mistakes in a user's profile."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from samara.devices.hardware.profile import (
    load_device,
    load_link,
    save_profile,
    shipped_devices,
    shipped_links,
)
from samara.shared.errors import ConfigError


def test_what_ships_is_whole() -> None:
    devices, links = shipped_devices(), shipped_links()
    assert {device.name for device in devices} >= {
        "orin-nano-8gb",
        "orin-nano-4gb",
        "orin-nx-16gb",
        "agx-orin-64gb",
        "oneplus-12",
        "mid-range-phone",
        "laptop",
    }
    assert {link.name for link in links} >= {"wifi", "lte", "5g", "metered-2g"}
    assert set(load_device("orin-nano-8gb").power) == {"7W", "15W", "25W"}
    assert all(device.usable_bytes > device.memory.runtime_bytes for device in devices)


@pytest.mark.parametrize("name", [device.name for device in shipped_devices()])
def test_a_written_profile_is_read_back(name: str, tmp_path: Path) -> None:
    device = load_device(name)
    save_profile(device, tmp_path / "again.toml")
    assert load_device(str(tmp_path / "again.toml")) == device


@pytest.mark.parametrize("name", [link.name for link in shipped_links()])
def test_a_link_survives_being_written(name: str, tmp_path: Path) -> None:
    link = load_link(name)
    save_profile(link, tmp_path / "again.toml")
    assert load_link(str(tmp_path / "again.toml")) == link


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    save_profile(load_device("laptop"), file)
    text = file.read_text().replace("bandwidth = 38400000000.0", 'bandwidht = 1.0\nbandwidth = "x"')
    file.write_text(text.replace("rate-share = ", "rate-share = 7"))
    with pytest.raises(ConfigError) as error:
        load_device(str(file))
    message = str(error.value)
    assert "3 mistakes" in message
    assert "memory.bandwidht" in message
    assert "did you mean memory.bandwidth?" in message
    assert "memory.bandwidth: Input should be a valid number" in message
    assert "timing.rate-share" in message


def test_a_figure_without_a_source_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    save_profile(load_device("laptop"), file)
    text = file.read_text()
    source = next(line for line in text.splitlines() if line.startswith('"memory.bandwidth"'))
    file.write_text(text.replace(source, '"memory.latency" = "a guess"'))
    with pytest.raises(ConfigError, match=r"(?s)memory.bandwidth has no source.*no such number"):
        load_device(str(file))


def test_a_link_is_there_at_hours_of_the_day(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    save_profile(load_link("lte"), file)
    content = tomllib.loads(file.read_text())
    assert content["available"] == [[0.0, 24.0]]
    file.write_text(tomli_w.dumps(content | {"available": [[25.0, 3.0]]}))
    with pytest.raises(ConfigError, match="available"):
        load_link(str(file))


def test_no_such_profile() -> None:
    with pytest.raises(ConfigError, match=r"'nano'.*orin-nano-8gb"):
        load_device("nano")


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("jetson-orin-nano", "orin-nano-8gb"),
        ("orin-nano", "orin-nano-8gb"),
        ("jetson-orin-nano-4gb", "orin-nano-4gb"),
        ("jetson-agx-orin", "agx-orin-64gb"),
        ("oneplus-12", "oneplus-12"),
    ],
)
def test_a_board_may_be_called_as_a_live_client_calls_it(name: str, profile: str) -> None:
    assert load_device(name).name == profile


def test_a_power_mode_scales_what_its_clocks_drive() -> None:
    device = load_device("orin-nano-8gb")
    slow = device.with_power_mode("7W")
    assert slow.watts == 7
    assert slow.compute.fp16 == pytest.approx(device.compute.fp16 * 420 / 625)
    assert slow.memory.bandwidth == device.memory.bandwidth
    assert slow.timing.launch_seconds > device.timing.launch_seconds
    assert slow.with_power_mode("15W").compute.fp16 == pytest.approx(device.compute.fp16)
    with pytest.raises(ConfigError, match="7W, 15W, 25W"):
        device.with_power_mode("99W")


def test_profiles_are_written_as_toml_that_others_read(tmp_path: Path) -> None:
    save_profile(load_device("oneplus-12"), tmp_path / "p.toml")
    assert tomllib.loads((tmp_path / "p.toml").read_text())["memory"]["bytes"] == 12 * 2**30
