"""Simulated clients, whose sessions are stored in Flower's context.

A simulated client usually has a share of the run's data set. It may instead repeat a live client's
part in a recorded run, with the data of the live client. The node config then contains the live
client's index and settings.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import torch
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Context

from samara.client.limits.answer_limits import AnswerLimits
from samara.client.limits.device_settings import (
    CLIENT_INDEX,
    DEVICE_SETTINGS_KEY,
    owners_limits,
    with_device_settings,
)
from samara.client.limits.privacy_budget import ChargeLog
from samara.client.limits.scalar_counts import ScalarCounts
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.protocol.answer_guard import AnswerGuard, Records
from samara.client.protocol.client import Client, Guard, Participation
from samara.client.protocol.masking_client import MaskingClient, MaskingState
from samara.client.protocol.session import Reach, Session, SessionStore, SharedCatchUp
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import LoadedRun, ModelRuntime, load_run
from samara.shared.errors import ConfigError
from samara.shared.extensions import check_extensions
from samara.shared.machine.process import cores
from samara.shared.protocol.signing import public_pem, sign
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import run_folder, run_id_of

_SESSION, _DEVICE, _MASKING = "session", "device", "masking"


def _parse(settings: str, source: str, clients: int | None) -> RunConfig:
    config = RunConfig.of(json.loads(settings), source)
    return config if clients is None else config.among(clients)


class RunFacts(NamedTuple):
    """Facts about a run that all its simulated clients share.

    Attributes:
        part: participation of the clients in the run.
        limits: limits on the clients' answers.
    """

    part: Participation
    limits: AnswerLimits

    @classmethod
    def of(cls, config: RunConfig, server_config: RunConfig, runtime: ModelRuntime) -> Self:
        """Return the facts that follow from the settings of a run.

        Args:
            config: settings of the run on the client.
            server_config: settings of the run on the server.
            runtime: runtime of the client.

        Raises:
            ConfigError: if this machine lacks code that the settings name.
        """
        check_extensions(config.flat(), on_client=True)
        run_id = run_id_of(server_config, runtime.layout, runtime.model_id)
        part = Participation(
            config.terms,
            run_id,
            run_folder(config, run_id),
            config.ledger.snapshot_every,
            is_measured=config.privacy.allows_evaluation,
        )
        return cls(part, owners_limits(config.data))

    def client(
        self,
        learner: RuntimeLearner,
        sessions: SessionStore,
        reach: Reach = Session.catch_up,
        masking: MaskingClient | None = None,
    ) -> Client:
        """Return a simulated client, whose guard stores only the counts that the limits need."""
        part, limits = replace(self.part, masking=masking), self.limits
        guard = Guard()
        if limits != AnswerLimits():
            folder = part.own_folder(learner.client)
            records = Records(
                counts=ScalarCounts(folder if limits.scalar_limit else None),
                charges=ChargeLog(folder if limits.epsilon_limit else None),
            )
            guard = AnswerGuard(limits, learner, records, part.terms.privacy)
        return Client(learner, sessions, guard, part, reach)


class RunCache:
    """Loaded models and data of the simulated clients of a process, shared by its threads.

    Weights and examples are loaded once for configurations that agree in model, task and data.
    Every thread has a separate runtime with these weights.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forget all models and data."""
        self._files: dict[str, Any] = {}
        self._of_thread = threading.local()
        self.catch_up = SharedCatchUp()
        self._latest: LoadedRun | None = None
        self._facts: dict[tuple[RunConfig, RunConfig], RunFacts] = {}
        self._parsed = lru_cache(maxsize=64)(_parse)
        self._latest_parsed: tuple[Mapping[str, Any], str, int | None, RunConfig] | None = None
        self._run = lru_cache(maxsize=2)(self._load)
        self._live_run = lru_cache(maxsize=64)(load_run)

    def clear_if_changed(self, config: RunConfig) -> None:
        """Forget all models and data if a file that a configuration names has changed.

        In a notebook, one process makes many runs while its user edits the data. Parsed settings
        are always forgotten, because the tasks and starts that they name may have changed.
        """
        adapter = config.adapter
        files = adapter.start, adapter.basis, adapter.damping
        paths = (config.model.path, config.data.path, config.task, *files)
        found = {path: _file_versions(Path(path)) for path in paths if path}
        with self._lock:
            self._parsed.cache_clear()
            self._latest_parsed = None
            if any(self._files.get(path, version) != version for path, version in found.items()):
                self.clear()
            self._files |= found

    def config_of(
        self, settings: Mapping[str, Any], source: str, clients: int | None = None
    ) -> RunConfig:
        """Return the configuration of some settings; they are parsed only once per run.

        Args:
            settings: flat settings.
            source: name of the settings for error messages.
            clients: number of clients that the data set is divided among, if Flower provides it.

        Raises:
            ConfigError: if the settings contain mistakes; the message lists all of them.
        """
        latest = self._latest_parsed
        if latest and latest[0] is settings and latest[1:3] == (source, clients):
            return latest[3]
        config = self._parsed(json.dumps(dict(settings), sort_keys=True), source, clients)
        self._latest_parsed = settings, source, clients, config
        return config

    def run_for(self, config: RunConfig) -> LoadedRun:
        """Return the calling thread's model and data for a configuration.

        Raises:
            SamaraError: if the model, the task or the data cannot be used.
        """
        own = self._of_thread
        if getattr(own, "config", None) is not config:
            with self._lock:
                first, loader = self._run(config)
            if getattr(own, "first", None) is not first:
                is_loader = loader == threading.get_ident()
                own.run = first if is_loader else first.copy_sharing_weights()
            own.first, own.config = first, config
        run: LoadedRun = own.run
        return run

    def live_run_for(self, config: RunConfig) -> LoadedRun:
        """Return the model and data of a repeated live client; one thread serves all such clients.

        Raises:
            SamaraError: if the model, the task or the data cannot be used.
        """
        return self._live_run(config)

    def facts_of(
        self, config: RunConfig, server_config: RunConfig, runtime: ModelRuntime
    ) -> RunFacts:
        """Return the facts about a run, which are computed only once; see `RunFacts.of`."""
        key = config, server_config
        if key not in self._facts:
            self._facts[key] = RunFacts.of(config, server_config, runtime)
        return self._facts[key]

    def _load(self, config: RunConfig) -> tuple[LoadedRun, int]:
        """Return model and data for a configuration, and the id of the thread that loaded them."""
        latest = self._latest
        if latest and _weights_and_data(latest.runtime.config) == _weights_and_data(config):
            torch.set_num_threads(config.threads or cores())
            self._latest = latest.under(config)
        else:
            self._latest = load_run(config)
        return self._latest, threading.get_ident()


RUNS = RunCache()
"""The models and data of this process.

They are global, because Flower gives the ClientApp's functions no object that could store models
between messages.
"""


def _file_versions(path: Path) -> list[tuple[str, int, int]]:
    """Return name, modification time and size of a file, or of each file in a folder."""
    files = [file for file in (path, *path.rglob("*")) if file.is_file()]
    facts = [(file, file.stat()) for file in sorted(files)]
    return [(str(file.resolve()), fact.st_mtime_ns, fact.st_size) for file, fact in facts]


class _ContextSessions:
    """The sessions in one client's context; every cluster of a run has its run id."""

    def __init__(self, context: Context) -> None:
        self._records = context.state  # `config_records` would copy all records

    def read_session(self, run_id: bytes) -> Session | None:
        record = self._records.get(f"{_SESSION} {run_id.hex()}")
        if record is None:
            return None
        return Session.from_bytes({key: bytes(value) for key, value in record.items()})  # type: ignore[arg-type]

    def write_session(self, run_id: bytes, session: Session) -> None:
        self._records[f"{_SESSION} {run_id.hex()}"] = ConfigRecord(session.to_bytes())  # type: ignore[arg-type]


class _SimulatedDevice:
    """The device key and the masking state of a simulated client, stored in its context.

    The key is created for the simulation, because a simulated client has no device with a key.
    """

    def __init__(self, context: Context) -> None:
        self._records = context.state.config_records

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        if (record := self._records.get(_DEVICE)) is None:
            number = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value
            record = self._records[_DEVICE] = ConfigRecord({"key": number.to_bytes(32, "little")})
        number = int.from_bytes(cast(bytes, record["key"]), "little")
        return ec.derive_private_key(number, ec.SECP256R1())

    @property
    def public(self) -> bytes:
        return public_pem(self._key)

    def sign(self, data: bytes) -> bytes:
        return sign(self._key, data)

    def read_masking(self) -> MaskingState:
        record = self._records.get(_MASKING)
        return MaskingState(**cast(dict[str, bytes], dict(record))) if record else MaskingState()

    def write_masking(self, state: MaskingState) -> None:
        self._records[_MASKING] = ConfigRecord(state.to_bytes())  # type: ignore[arg-type]


def simulated_client(context: Context, runs: RunCache = RUNS) -> Client:
    """Return the simulated client of a Flower context.

    Args:
        context: Flower's context, with the run config, the node config and the sessions.
        runs: loaded models and data.

    Raises:
        SamaraError: if the settings, or the files that they name, cannot be used.
    """
    index, sessions, reach = (
        client_index_of(context),
        _ContextSessions(context),
        runs.catch_up.reach,
    )
    if DEVICE_SETTINGS_KEY in context.node_config:
        server_config = runs.config_of(context.run_config, "run config")
        settings = json.loads(str(context.node_config[DEVICE_SETTINGS_KEY]))
        device_config = runs.config_of(settings, "device settings")
        config = with_device_settings(server_config, device_config)
        run = runs.live_run_for(config)
        facts = runs.facts_of(config, server_config, run.runtime)
        hidden = facts._replace(part=replace(facts.part, is_measured=False))  # as live
        learner = RuntimeLearner(run.runtime, run.data.undivided(index))
        return hidden.client(learner, sessions, reach)
    config = runs.config_of(context.run_config, "run config", _client_count(context))
    run = runs.run_for(config)
    learner = RuntimeLearner(run.runtime, run.data.share_of(index, config.data.clients))
    facts = runs.facts_of(config, config, run.runtime)
    return facts.client(learner, sessions, reach, _masking_of(context, index, config))


def _masking_of(context: Context, index: int, config: RunConfig) -> MaskingClient | None:
    if not config.privacy.secure_aggregation:
        return None
    device = _SimulatedDevice(context)
    return MaskingClient(index, device, device, config.cohort.minimum, config.privacy.bucket)


def simulated_data(context: Context, runs: RunCache = RUNS) -> ClientData:
    """Return the data of a context's simulated client: a share of the run's data set.

    Args:
        context: Flower's context, with the run config and the node config.
        runs: loaded models and data.

    Raises:
        SamaraError: if the settings, or the files that they name, cannot be used.
    """
    config = runs.config_of(context.run_config, "run config", _client_count(context))
    return runs.run_for(config).data.share_of(client_index_of(context), config.data.clients)


def _client_count(context: Context) -> int:
    """Return the number of clients among which the run's data set is divided.

    Raises:
        ConfigError: if the node config lacks the node's number or the number of clients.
    """
    missing = [key for key in ("partition-id", "num-partitions") if key not in context.node_config]
    if missing:
        raise ConfigError(
            f"the node config lacks {' and '.join(missing)}; start the SuperNode with "
            '--node-config "partition-id=0 num-partitions=8"'
        )
    return int(context.node_config["num-partitions"])


def client_index_of(context: Context) -> int:
    """Return a simulated client's index: its partition, or the index of a live client."""
    partition = context.node_config.get("partition-id", 0)
    return int(context.node_config.get(CLIENT_INDEX, partition))


def _weights_and_data(config: RunConfig) -> tuple[object, ...]:
    """Return the settings that determine the loaded weights and examples."""
    return config.model, config.task, config.form, config.data, config.evaluate.limit
