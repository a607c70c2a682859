"""Settings whose values come from the client's device instead of the server.

Each setting declares its owner (`samara.shared.settings.setting`). The device decides model, data,
task and execution. The run decides when private rounds happen, unless the device's owner has
decided this. The run decides the seed of a split by text: a text is in the same split on every
client only if all clients use the same seed.
"""

from samara.client.limits.answer_limits import AnswerLimits
from samara.shared.settings.config import RunConfig
from samara.shared.settings.data import DataSettings
from samara.shared.tasks.messages import EMBEDDED_DATA

CLIENT_INDEX, DEVICE_SETTINGS_KEY = "client", "device-settings"
"""Keys in the node config of a simulated client that represents a live client. The values are the
live client's index and its settings as a JSON object."""


def with_device_settings(server_config: RunConfig, device_config: RunConfig) -> RunConfig:
    """Return a run's settings with the device's values for all settings that the device decides."""
    config = server_config.with_owners_values(device_config, "device")
    run, own = server_config.data, device_config.data
    if run.split != "text" or own.path == EMBEDDED_DATA:  # generated texts: one split each
        return config
    data = own.model_copy(update={"split": run.split, "seed": run.seed})
    return config.model_copy(update={"data": data})


def owners_limits(settings: DataSettings) -> AnswerLimits:
    """Return the owner's limits on a client's answers."""
    return AnswerLimits(
        settings.scalar_limit,
        settings.least_batch,
        settings.scalars_per_example,
        settings.epsilon_limit,
    )
