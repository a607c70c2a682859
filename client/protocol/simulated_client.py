"""A client in the process of the simulation, with its memory in Flower's context.

Its data are a share of the run's; or its own, if the node config has the index of a live client and
that client's own settings.
"""

import json
from functools import lru_cache

from flwr.app import ConfigRecord, Context

from client.protocol.device_settings import CLIENT_INDEX, DEVICE_SETTINGS_KEY, with_device_settings
from client.protocol.protocol_client import ProtocolClient
from client.protocol.session import Session
from client.training.trainer import Trainer, trainer_for
from shared.config import RunConfig
from shared.errors import ConfigError

_SESSION = "session"


class _ContextSessions:
    """Sessions of one context; the clusters of a run have an id each."""

    def __init__(self, context: Context) -> None:
        self._records = context.state.config_records

    def session(self, run_id: bytes) -> Session | None:
        record = self._records.get(f"{_SESSION} {run_id.hex()}")
        if record is None:
            return None
        return Session.from_bytes({key: bytes(value) for key, value in record.items()})  # type: ignore[arg-type]

    def remember(self, run_id: bytes, session: Session) -> None:
        self._records[f"{_SESSION} {run_id.hex()}"] = ConfigRecord(session.to_bytes())  # type: ignore[arg-type]


def participant(context: Context) -> ProtocolClient:
    """The client that a context is of; clients of one thread share a trainer.

    Raises:
        SamaraError: if the settings, or what they name, cannot be used.
    """
    config = RunConfig.of(context.run_config, "run config")
    if DEVICE_SETTINGS_KEY in context.node_config:
        own = RunConfig.of(
            json.loads(str(context.node_config[DEVICE_SETTINGS_KEY])), "own settings"
        )
        mine = with_device_settings(config, own)
        memory = _ContextSessions(context)
        return ProtocolClient(_trainer_of(mine), mine, config, client_index_of(context), 0, memory)
    missing = [key for key in ("partition-id", "num-partitions") if key not in context.node_config]
    if missing:
        raise ConfigError(
            f"the node config lacks {' and '.join(missing)}; start the SuperNode with "
            '--node-config "partition-id=0 num-partitions=8"'
        )
    clients = int(context.node_config["num-partitions"])
    config = config.among(clients)
    memory = _ContextSessions(context)
    return ProtocolClient(
        trainer_for(config), config, config, client_index_of(context), clients, memory
    )


def client_index_of(context: Context) -> int:
    """The index of a simulated client: its partition, or that of the live client it stands for."""
    partition = context.node_config.get("partition-id", 0)
    return int(context.node_config.get(CLIENT_INDEX, partition))


@lru_cache(maxsize=64)
def _trainer_of(config: RunConfig) -> Trainer:
    """The trainer of a client with data of its own; one thread runs all of these clients."""
    return Trainer(config)
