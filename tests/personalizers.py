"""The private rounds of a client with a model runtime, without a federation around it."""

from pathlib import Path

from samara.client.personal.personalizer import Personalizer
from samara.client.personal.private_fit import NO_PRIOR, CommonPrior
from samara.client.personal.runtime_learner import RuntimeLearner
from samara.client.training.client_data import ClientData
from samara.client.training.model_runtime import ModelRuntime
from samara.shared.settings.config import RunConfig
from samara.shared.settings.runs import client_folder


def runtime_personalizer(
    runtime: ModelRuntime,
    data: ClientData,
    config: RunConfig,
    run_id: bytes,
    runs: Path | None = None,
    prior: CommonPrior = NO_PRIOR,
) -> Personalizer:
    folder = client_folder(config, run_id, data.client)
    learner, every = RuntimeLearner(runtime, data), config.ledger.snapshot_every
    return Personalizer(learner, config.terms, run_id, folder, every, runs, prior)
