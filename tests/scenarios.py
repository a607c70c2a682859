"""Signed scenarios for tests, and operators who sign them."""

from pathlib import Path

from samara.client.protocol.scenario_folder import ScenarioFolder
from samara.server.live.scenario_signing import create_operator_key
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
