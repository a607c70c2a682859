"""The model of a run, read from a client's folder while the client's trainer may be running."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.limits.device_settings import with_device_settings
from samara.client.personal.methods import composition
from samara.client.personal.model_folder import TrainedModel
from samara.client.personal.own_words import OwnWords, OwnWordsFile
from samara.client.personal.private_rounds import personal_ledger
from samara.client.protocol.joined_runs import JoinedRun, JoinedRuns, find_run_folder
from samara.client.protocol.resident_trainer import BLOBS_FOLDER
from samara.client.protocol.session import Session
from samara.client.protocol.session_store import SessionFolder
from samara.client.questions.model_in_use import ValidationFile, find_run_in_use
from samara.shared.errors import TrainerError
from samara.shared.model.perturbations import read_weight_map
from samara.shared.protocol.ledger.latest_state import read_latest_state
from samara.shared.settings.blobs import with_local_blobs
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import client_folder
from samara.shared.storage.blob_store import BlobStore


@dataclass(frozen=True, eq=False)
class ClientModel:
    """A client's global and private state in a run.

    Attributes:
        run: run that the client has joined.
        config: settings of the run on this client, with paths of this machine.
        client: client index.
        session: session with the global state.
        private_rounds: number of private rounds in the personal ledger; a fit counts as one.
        private: private state, int64 [d]; None if there is no private round.
        own_words: own words that are mixed into the personal model; None without any.
    """

    run: JoinedRun
    config: RunConfig
    client: int
    session: Session
    private_rounds: int
    private: NDArray[np.int64] | None
    own_words: OwnWords | None

    @classmethod
    def read(
        cls, folder: Path, device_config: RunConfig, client: int, run: str = ""
    ) -> "ClientModel":
        """Read a client's states in a run from the client's folder.

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
                f"{joined.folder}: the session is missing or damaged; wait until the client "
                "answers the server again, which makes a new session"
            )
        config = with_device_settings(joined.config, device_config)
        config = with_local_blobs(config, BlobStore(folder / BLOBS_FOLDER))
        config = config.model_copy(update={"out": str(joined.folder)})
        rounds, private = 0, None
        own = client_folder(config, joined.run_id, client)
        ledger, own_words = personal_ledger(own), OwnWordsFile(own).read()
        if ledger.is_dir():
            rounds, private = read_latest_state(ledger, joined.layout)
        private = private if rounds else None
        return cls(joined, config, client, session, rounds, private, own_words)

    @property
    def trained(self) -> TrainedModel:
        """The client's personal model: the global state plus the private state.

        Raises:
            SamaraError: if a file that the adapter needs is missing or has changed.
        """
        layout = self.run.layout
        state = composition(self.config.terms, layout).model(self.session.state, self.private)
        numbers = read_weight_map(self.config.adapter, layout).weights(state)
        return TrainedModel(
            self.config, layout, self.run.model_id, numbers, self.about, own_words=self.own_words
        )

    @property
    def about(self) -> str:
        """Sentences for the owner that identify the model."""
        rounds = f"round {self.session.position.round} of run {self.run.run_id.hex()}"
        if self.private is None:
            return f"The global model after {rounds}; client {self.client} has no private round."
        if not self.private.any():
            return (
                f"The global model after {rounds}; the private part of client {self.client} is "
                "zero."
            )
        digest = self.session.digest.hex()[:12]
        return (
            f"The personal model of client {self.client}: the global model after {rounds} (digest "
            f"{digest}) and {self.private_rounds} private rounds of this client."
        )


def read_model_in_use(
    client_folder: Path, device_config: RunConfig, client: int, run: str = ""
) -> ClientModel:
    """Read a client's states in the run whose model is in use.

    Args:
        client_folder: folder of the client.
        device_config: the device's settings. They may name another base model than the run's.
        client: client index.
        run: beginning of the id of another run, in hex; empty for the run in use.

    Raises:
        SamaraError: if there is no such run, or its files are damaged.
    """
    folder = find_run_folder(client_folder, run) if run else find_run_in_use(client_folder)
    noted = ValidationFile(folder).read()
    if noted is not None and Path(noted.model_path).is_dir():
        device_config = device_config.with_values({"model.path": noted.model_path})
    return ClientModel.read(client_folder, device_config, client, folder.name)
