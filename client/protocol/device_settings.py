"""Which settings a client decides for itself, whatever the server's say."""

from shared.config import RunConfig

CLIENT_INDEX, DEVICE_SETTINGS_KEY = "client", "own-settings"
"""In the node config of a simulated client that stands for a live one: the live one's index, and
its own settings as a JSON object."""
DEVICE_SETTINGS = frozenset(
    {
        "model",
        "data",
        "task",
        "threads",
        "grouping",
        "micro_batch",
        "memory_budget",
        "trunk_cache",
        "trunk_cache_folder",
    }
)
"""Fields of `RunConfig`."""


def with_device_settings(asked: RunConfig, own: RunConfig) -> RunConfig:
    """A run's settings on a client that has some of its own."""
    return asked.model_copy(update={key: getattr(own, key) for key in DEVICE_SETTINGS})
