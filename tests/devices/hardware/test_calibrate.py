"""The measurement of this machine; its speed does not matter here."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from samara.command import app
from samara.devices.hardware import calibrate
from samara.devices.hardware.estimate import estimate_step
from samara.devices.hardware.model_shape import model_shape
from samara.devices.hardware.profile import load_device
from samara.devices.hardware.roofline import Workload


def test_this_machine_becomes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SWEEPS": 1,
        "_LEAST_SECONDS": 0.0,
        "_COPIED_BYTES": 2**22,
        "_WEIGHTS_BYTES": 2**20,
        "_TOKENS": (8, 64),
    }.items():
        monkeypatch.setattr(calibrate, name, value)
    file = tmp_path / "mine.toml"
    arguments = ["device", "calibrate", "--threads", "1", "--watts", "20", "--out", str(file)]
    for _ in range(2):  # replaces its own file
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert "Gop/s" in result.output
    device = load_device(str(file))
    assert device.name == "mine"
    assert device.compute.fp32 > 1e8
    assert device.memory.bytes > device.memory.runtime_bytes > 2**26
    assert device.timing.pass_seconds > 0
    step = estimate_step(model_shape("tinyllama-1.1b"), device, Workload(quantization="nf4"))
    assert step.energy_joules == pytest.approx(20 * step.time.total)
