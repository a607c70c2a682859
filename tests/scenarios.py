"""Scenarios for tests: signed ones with their operators, and one for a rehearsal."""

from pathlib import Path

import pytest

from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.devices.hardware.cpu_limit import CgroupV1Cpu
from samara.devices.hardware.link_shaping import check_shaping
from samara.devices.hardware.memory_limit import CgroupV1Limit
from samara.server.live.scenario_signing import create_operator_key
from samara.shared.errors import DeviceError
from samara.shared.protocol.signing import SigningKey
from samara.shared.settings.blobs import file_settings
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import identity_bytes
from samara.shared.terms.signed_scenario import SignedScenario


def operator_key(folder: Path, name: str = "operator.key") -> SigningKey:
    """The key of an operator, created at the first call."""
    file = folder / name
    if not file.exists():
        create_operator_key(file)
    return SigningKey(file)


def signed(config: RunConfig, key: SigningKey) -> SignedScenario:
    return SignedScenario.sign(identity_bytes(config), file_settings(config), key)


def give(client_folder: Path, config: RunConfig, key: SigningKey) -> ScenarioFolder:
    """Store a signed scenario in a client's folder."""
    folder = ScenarioFolder(client_folder)
    folder.add(signed(config, key))
    return folder


SCENARIO = """
rounds = 3
steps = 2
queries = 2
batch = 8
learning-rate = 0.1

[adapter]
layers = "top:1"

[data]
clients = 2

[cohort]
available = 2

[personal]
rounds = 0

[evaluate]
every = 0
test = false

[[fleet.devices]]
device = "orin-nano-8gb"
share = 1

[[fleet.devices]]
device = "laptop"
share = 1

[[rehearsal.faults]]
kind = "link-cut"
client = 1
at = 0.0
seconds = 3.0
"""


def write_rehearsal(folder: Path) -> Path:
    """Write a scenario for `samara rehearse`; skip the test where devices cannot be rehearsed."""
    try:
        check_shaping()
        CgroupV1Limit(2**30).close()
        CgroupV1Cpu(1.0).close()
    except (OSError, DeviceError) as error:
        pytest.skip(f"processes cannot be held to a device here: {error}")
    file = folder / "field.toml"
    file.write_text(SCENARIO)
    return file
