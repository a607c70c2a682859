"""The Python function `device_estimate`, which predicts a training step's cost on a device."""

from typing import Any, NamedTuple

from samara.devices.hardware.estimate import StepEstimate
from samara.devices.hardware.profile import load_device
from samara.devices.hardware.run_data import count_data
from samara.devices.hardware.target import TargetEstimate, estimate_target, parse_points, step_of
from samara.overrides import Scenario, config_of


class DeviceEstimate(NamedTuple):
    """The predicted cost of a client's training step on a device.

    Attributes:
        step: seconds, bytes and joules of one step.
        target: rounds and seconds until the requested gain in accuracy; None without a request.
    """

    step: StepEstimate
    target: TargetEstimate | None


def device_estimate(
    scenario: Scenario,
    device: str = "laptop",
    *,
    power: str = "",
    tokens: int = 0,
    target: str | float = 0,
    **settings: Any,
) -> DeviceEstimate:
    """Predict time, memory and energy of a client's training step on a device.

    >>> estimate = device_estimate({"adapter.layers": "top:1"}, "orin-nano-8gb")
    >>> estimate.step.fits
    True

    Args:
        scenario: settings of the run, in a form that `simulate` accepts.
        device: name of a shipped profile, or path of a profile file.
        power: power mode of the device; empty for the profile's first power mode.
        tokens: number of tokens of an example. 0 means the mean over the run's data or, if the
            settings name no data, the largest number of tokens that the run reads.
        target: gain in accuracy over zero-shot, in percentage points, for which the time is
            estimated; 0 for no such estimate.
        settings: settings that replace those of the scenario.

    Raises:
        SamaraError: if the settings, the model or the profile cannot be used, or no measured run
            reached the target.
    """
    points = parse_points(str(target)) if target else 0.0
    config = config_of(scenario, settings)
    profile = load_device(device)
    profile = profile.with_power_mode(power) if power else profile
    config, typical, _ = count_data(config)
    step = step_of(config, profile, tokens or typical)
    return DeviceEstimate(step, estimate_target(config, step, points) if points else None)
