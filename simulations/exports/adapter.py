"""Exports of a finished run's global and personal models, and a comparison of two clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.methods import composition
from samara.client.personal.model_folder import TrainedModel, write_new_folder
from samara.client.personal.own_words import OwnWords, OwnWordsFile
from samara.client.personal.private_rounds import personal_ledger
from samara.server.rounds.clusters import cluster_folder
from samara.server.store import read_layout, replay_run
from samara.shared.errors import LedgerError, ModelError, SamaraError
from samara.shared.model.loading import BaseModel
from samara.shared.model.perturbations import WeightMap, read_weight_map
from samara.shared.protocol.layout import Layout
from samara.shared.protocol.ledger.personal_file import (
    PERSONAL_MAGIC,
    FitFile,
    PersonalFile,
    read_personal_file,
)
from samara.shared.protocol.ledger.reading import read_header, read_ledger
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import digest, to_float32, zero_state
from samara.shared.results.result import RESULT_FILE, RunResult
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import client_folder, settings_here
from samara.shared.storage.files import write_requested

State = NDArray[np.int64]


@dataclass(frozen=True)
class FinishedRun:
    """A finished run whose models can be read.

    Attributes:
        folder: folder of the run.
        result: content of the run's result.json.
        config: settings of the run, with `out` set to this folder.
        layout: layout of the adapter.
    """

    folder: Path
    result: RunResult
    config: RunConfig
    layout: Layout

    @classmethod
    def at(cls, folder: Path) -> "FinishedRun":
        """Open a finished run.

        Raises:
            SamaraError: if the run is not finished, or is damaged.
        """
        result = RunResult.read(folder)
        config = RunConfig.of(
            settings_here(result.config, folder) | {"out": str(folder)}, str(folder)
        )
        return cls(folder, result, config, read_layout(folder))

    @cached_property
    def weight_map(self) -> WeightMap:
        """The map from a state of the run to the weights of the run's adapter."""
        return read_weight_map(self.config.adapter, self.layout)

    def check_model(self, base: BaseModel) -> None:
        """Check that a model is the base model of the run.

        Raises:
            ModelError: if the run has another base model.
        """
        if base.model_id.hex() != self.result.model_id:
            raise ModelError(
                f"{base.folder}: is not the base model of {self.folder}, whose id begins with "
                f"{self.result.model_id[:12]}; restore the files of that model"
            )

    def global_state(self, client: int | None = None) -> State:
        """Return the global state after the last round, int64 [d], replayed and checked.

        Args:
            client: a client of the cluster, in a run with clusters.

        Raises:
            SamaraError: if the ledger is damaged or does not end with the result's digest, or if
                the run has clusters and the client is in none of them.
        """
        folder = self.folder
        groups = self.result.groups
        if groups:
            if client is None or client not in groups:
                raise SamaraError(
                    f"{folder}: the run has one model per cluster; name a client of the cluster "
                    f"with --client, one of {', '.join(map(str, groups))}"
                )
            folder = cluster_folder(folder, groups[client])
        state = zero_state(self.layout.size)
        for step in replay_run(folder):
            state = step.state
        end = digest(self.layout.hash, state).hex()
        if not groups and end != self.result.final_digest:
            raise LedgerError(
                f"{folder / RESULT_FILE}: ends with digest {self.result.final_digest[:16]}, but "
                f"the ledger ends with {end[:16]}; rounds are missing or belong to another run: "
                "restore a copy of the folder, or repeat the run in a new folder"
            )
        return state

    def model(self, client: int | None = None, private: State | None = None) -> State:
        """Return the state of the global model or of a client's personal model, int64 [d].

        Args:
            client: client whose private rounds to add; None for the global model.
            private: a private state to use instead of the client's ledger, int64 [d].

        Raises:
            SamaraError: if a ledger is damaged or missing.
        """
        if client is not None and private is None and not self.result.groups:
            private = self.personal_state(client)
        parts = composition(self.config.terms, self.layout)
        return parts.model(self.global_state(client), private)

    def trained_model(self, client: int | None = None) -> TrainedModel:
        """Return the global model or a client's personal model, ready for export.

        Raises:
            SamaraError: if a ledger is damaged or missing.
        """
        whose = "The global model" if client is None else f"The personal model of client {client}"
        return TrainedModel(
            self.config,
            self.layout,
            bytes.fromhex(self.result.model_id),
            self.weight_map.weights(self.model(client)),
            f"{whose} of run {self.result.run_id}.",
            own_words=None if client is None else self.own_words(client),
        )

    def own_words(self, client: int) -> OwnWords | None:
        """Return a client's own words; None if the client has none."""
        return OwnWordsFile(self._folder_of(client)).read()

    def personal_state(self, client: int) -> State:
        """Return the state of a client's private rounds, int64 [d], replayed and checked.

        Raises:
            LedgerError: if there is no such client or ledger, or the ledger is damaged.
        """
        *_, last = verify_ledger(self._personal_ledger(client), self.layout)
        return last.state

    def personal_file(self, client: int) -> PersonalFile | FitFile:
        """Return a client's private rounds, or its private fit, as a personal file.

        Raises:
            LedgerError: if there is no private part, or if a personal file cannot contain it.
        """
        ledger = self._personal_ledger(client)
        started = digest(self.layout.hash, self.global_state())
        header = read_header(ledger)
        records = list(read_ledger(ledger, strict=True))
        try:
            if records and all(record.delta.has_dense_values for record in records):
                return FitFile.from_records(header, records, client, started)
            return PersonalFile.from_records(header, records, self.config.seed, client, started)
        except LedgerError as error:
            raise LedgerError(f"{ledger}: {error}; export the PEFT form instead") from error

    def state_in(self, file: Path) -> State:
        """Return the private state that a personal file holds, int64 [d].

        Raises:
            LedgerError: if the file is damaged, or belongs to another run or state.
        """
        try:
            personal = read_personal_file(file.read_bytes())
            if personal.header.run_id.hex() != self.result.run_id:
                raise LedgerError(f"it belongs to run {personal.header.run_id.hex()}")
            if personal.global_digest.hex() != self.result.final_digest:
                raise LedgerError(
                    "it started from a global model that is not the final model of the run"
                )
            return personal.state(self.layout)
        except OSError as error:
            raise LedgerError(f"{file}: cannot be read: {error.strerror}") from error
        except SamaraError as error:
            raise LedgerError(f"{file}: {error}") from error

    def _folder_of(self, client: int) -> Path:
        return client_folder(self.config, bytes.fromhex(self.result.run_id), client)

    def _personal_ledger(self, client: int) -> Path:
        known = self.result.clients
        simulated = self.config.data.clients
        if client not in known:
            raise LedgerError(
                f"client {client} does not exist: the run has {len(known)} clients; give the "
                "number of a client of this run"
            )
        path = personal_ledger(self._folder_of(client))
        if not path.exists():
            if client >= simulated:  # a live client, whose index follows from its key
                name = self.result.name_of(client)
                raise LedgerError(
                    f"{self.folder}: the private rounds of {name} are only on its device; use "
                    f"`samara client ask` or `samara client export` there with --name {name}, or "
                    "leave out the client to get the global model"
                )
            raise LedgerError(
                f"{path}: client {client} has no private rounds in this run; set personal.rounds, "
                "or leave out the client to get the global model"
            )
        return path


def client_of(run: Path, name: str) -> int:
    """Return the client index for a client's name or number in a finished run.

    Raises:
        SamaraError: if there is no such client, or the run is not finished.
    """
    return RunResult.read(run).client_of(name)


def export(
    run: Path, client: int | None, out: Path, merged: bool = False, gguf: Path | None = None
) -> dict[str, list[float]]:
    """Write the global model of a run, or a client's personal model.

    Adapters inside the model become a LoRA adapter for PEFT or llama.cpp, or are merged into a
    complete model. A readout becomes a separate file. If a readout uses the output of a lower
    block, the blocks above this block are left out.

    Args:
        run: folder of a finished run.
        client: client whose private rounds to add; None for the global model.
        out: folder to write the adapter or the complete model to; it must be empty or missing,
            except for a PEFT adapter.
        merged: whether to write a complete model.
        gguf: GGUF file of the base model, if the adapter is for llama.cpp.

    Returns:
        Values of the tensors that no file format can contain, by name; they are left out.

    Raises:
        SamaraError: if the run, the client's ledger or the base model cannot be used.
    """
    trained = FinishedRun.at(run).trained_model(client)
    if gguf is not None:
        return write_new_folder(out, lambda folder: trained.write_gguf(folder, gguf))
    return write_new_folder(out, trained.write_merged if merged else trained.write_peft)


def export_ledger(run: Path, client: int, out: Path) -> int:
    """Write a client's private rounds as one small file; return its size in bytes.

    Raises:
        SamaraError: if the run or the client's ledger cannot be used.
    """
    data = FinishedRun.at(run).personal_file(client).encode()
    write_requested(out, data, data[: len(PERSONAL_MAGIC)])
    return len(data)


@dataclass(frozen=True)
class TensorDifference:
    """The difference between two clients' private states, in one part or in all parts.

    Attributes:
        name: name of a tensor or of the coordinates in a basis, or "all".
        one: Euclidean norm of the first state.
        other: Euclidean norm of the second state.
        distance: Euclidean norm of the difference of the two states.
        cosine: cosine of the angle between the two states; NaN if one of them is zero.
    """

    name: str
    one: float
    other: float
    distance: float
    cosine: float


def diff(run: Path, one: int, other: int) -> list[TensorDifference]:
    """Compare the private states of two clients, part by part and overall.

    Raises:
        SamaraError: if the run or a client's ledger cannot be used.
    """
    opened = FinishedRun.at(run)
    numbers = [to_float32(opened.personal_state(client)) for client in (one, other)]
    rows = [
        _difference(part.name, [own[part.numbers] for own in numbers])
        for part in opened.layout.parts
    ]
    return [*rows, _difference("all", numbers)]


def _difference(name: str, numbers: Sequence[NDArray[np.float32]]) -> TensorDifference:
    one, other = (own.astype(np.float64) for own in numbers)
    norms = float(np.linalg.norm(one)), float(np.linalg.norm(other))
    cosine = float(one @ other) / (norms[0] * norms[1]) if all(norms) else float("nan")
    return TensorDifference(name, *norms, float(np.linalg.norm(one - other)), cosine)
