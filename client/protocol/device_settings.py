"""The settings that a client decides for itself, whatever the server's values are.

Each setting declares its owner (`samara.shared.settings.setting`): model, data, task and how steps
are executed are the device's. When private rounds are taken is the run's, unless the owner says so.
A split by text is the run's, with its seed: it keeps texts apart only if all clients have the same.
"""

from samara.client.protocol.answer_limits import AnswerLimits
from samara.shared.config import RunConfig
from samara.shared.data_settings import EMBEDDED_DATA, DataSettings

CLIENT_INDEX, DEVICE_SETTINGS_KEY = "client", "device-settings"
"""Keys in the node config of a simulated client that represents a live one: the live client's
index, and its settings as a JSON object."""


def with_device_settings(server_config: RunConfig, device_config: RunConfig) -> RunConfig:
    """Return a run's settings with those that a device decides replaced by the device's values."""
    config = server_config.with_owners_values(device_config, "device")
    run, own = server_config.data, device_config.data
    if run.split != "text" or own.path == EMBEDDED_DATA:  # each generated text has one split
        return config
    data = own.model_copy(update={"split": run.split, "seed": run.seed})
    return config.model_copy(update={"data": data})


def owners_limits(settings: DataSettings) -> AnswerLimits:
    """Return the limits of a client's answers that its owner has set."""
    return AnswerLimits(
        settings.scalar_limit,
        settings.least_batch,
        settings.scalars_per_example,
        settings.epsilon_limit,
    )
