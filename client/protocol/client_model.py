"""The model of a run as a client's folder holds it, also while its trainer runs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.methods import composition
from samara.client.personal.model_folder import TrainedModel
from samara.client.personal.private_rounds import personal_ledger
from samara.client.protocol.device_settings import with_device_settings
from samara.client.protocol.joined_runs import JoinedRun, JoinedRuns, find_run_folder
from samara.client.protocol.model_in_use import ValidationFile, find_run_in_use
from samara.client.protocol.resident_trainer import BLOBS_FOLDER
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.shared.blob_store import BlobStore
from samara.shared.blobs import with_local_blobs
from samara.shared.config import RunConfig
from samara.shared.errors import TrainerError
from samara.shared.ledger.latest_state import read_latest_state
from samara.shared.model.perturbations import read_weight_map
from samara.shared.runs import client_folder


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The states of a client in a run.

    Attributes:
        run: the run.
        config: settings of the run on this client, with paths of this machine.
        client: client index.
        session: session with the global state.
        private_rounds: private rounds in the personal ledger; a fit counts as one.
        private: private state, int64 [d]; None if there is no private round.
    """

    run: JoinedRun
    config: RunConfig
    client: int
    session: Session
    private_rounds: int
    private: NDArray[np.int64] | None

    @classmethod
    def read(
        cls, folder: Path, device_config: RunConfig, client: int, run: str = ""
    ) -> "ClientModel":
        """Read the states of a client in a run.

        Args:
            folder: folder of the client.
            device_config: the device's settings.
            client: client index.
            run: beginning of the run id in hex; empty for the latest run.

        Raises:
            SamaraError: if there is no such run, or its files are damaged.
        """
        joined = JoinedRuns(folder).find(run)
        session = SessionFolder(folder).read_session(joined.run_id)
        if session is None:
            raise TrainerError(
                f"{joined.folder}: its session is missing or damaged; it is made again when the "
                "server next asks this client"
            )
        config = with_device_settings(joined.config, device_config)
        config = with_local_blobs(config, BlobStore(folder / BLOBS_FOLDER))
        config = config.model_copy(update={"out": str(joined.folder)})
        rounds, private = 0, None
        ledger = personal_ledger(client_folder(config, joined.run_id, client))
        if ledger.is_dir():
            rounds, private = read_latest_state(ledger, joined.layout)
        return cls(joined, config, client, session, rounds, private if rounds else None)

    @property
    def trained(self) -> TrainedModel:
        """The model that the client's owner uses: the global state and the private one.

        Raises:
            SamaraError: if a file that the adapter needs is missing or another one.
        """
        layout = self.run.layout
        state = composition(self.config.terms, layout).model(self.session.state, self.private)
        numbers = read_weight_map(self.config.adapter, layout).weights(state)
        return TrainedModel(self.config, layout, self.run.model_id, numbers, self.about)

    @property
    def about(self) -> str:
        """Sentences that say which model it is."""
        rounds = f"round {self.session.position.round} of run {self.run.run_id.hex()}"
        if self.private is None:
            return f"The global model after {rounds}; client {self.client} has no private round."
        if not self.private.any():
            return f"The global model after {rounds}; client {self.client} has kept nothing else."
        digest = self.session.digest.hex()[:12]
        return (
            f"The personal model of client {self.client}: the global model after {rounds} (digest "
            f"{digest}) and {self.private_rounds} private rounds of this client."
        )


def read_model_in_use(
    client_folder: Path, device_config: RunConfig, client: int, run: str = ""
) -> ClientModel:
    """Read the states of the run whose model is in use, with the base model that it had here.

    Args:
        client_folder: folder of the client.
        device_config: the device's settings, which may name another base model by now.
        client: client index.
        run: beginning of the id of another run, in hex.

    Raises:
        SamaraError: if there is no such run, or its files are damaged.
    """
    folder = find_run_folder(client_folder, run) if run else find_run_in_use(client_folder)
    noted = ValidationFile(folder).read()
    if noted is not None and Path(noted.model_path).is_dir():
        device_config = device_config.with_values({"model.path": noted.model_path})
    return ClientModel.read(client_folder, device_config, client, folder.name)
