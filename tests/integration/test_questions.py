"""Questions to a device's models: base, global and personal, while its trainer trains."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import Live, Settings, config_of

from client.protocol.client_model import ClientModel
from client.protocol.question_limits import MODELS
from client.protocol.remote_model import RemoteModel
from client.protocol.resident_trainer import ResidentTrainer
from client.protocol.trainer_service import serve_trainer
from devices.live.settings import resolve_device_settings
from server.app import serve
from shared.config import RunConfig
from shared.proto.trainer_pb2 import GeneratePart, GenerateRequest
from shared.tasks.rows import read_question

TEXTS = ["the film was good .", "the meal was cold !", "a rude day"]


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path leaves room for the name of a socket."""
    return tmp_path_factory.mktemp("q")


@pytest.fixture
def server_config(settings: Settings) -> RunConfig:
    theirs = {"model.path": "embedded", "data.path": "messages", "task": "messages"}
    return config_of(settings | theirs, cohort__available=1, evaluate__every=0, personal__rounds=2)


def load_resident(settings: Settings, folder: Path, *more: str) -> ResidentTrainer:
    own = resolve_device_settings(
        settings["model.path"], settings["data.path"], settings["task"], "cpu", ["threads=1", *more]
    )
    return ResidentTrainer.load(RunConfig.of(own, "test"), 7, folder)


@contextmanager
def trained(server_config: RunConfig, resident: ResidentTrainer, socket: Path) -> Iterator[None]:
    """A trainer on its socket, after it has taken part in a run."""
    with serve_trainer(lambda: resident, socket):
        serve(server_config, Live([socket], server_config))
        yield


def ask(socket: Path, question: Callable[[RemoteModel], Any]) -> Any:
    """Return what one question gives."""

    async def run() -> Any:
        async with RemoteModel(socket) as model:
            return await question(model)

    return asyncio.run(run())


def written(socket: Path, **request: Any) -> tuple[str, list[GeneratePart]]:
    """Return the text of an answer, and its parts."""

    async def run() -> list[GeneratePart]:
        async with RemoteModel(socket) as model:
            return [part async for part in model.generate(GenerateRequest(**request))]

    parts = asyncio.run(run())
    return "".join(part.text for part in parts), parts


def test_the_models_of_a_run_answer_with_the_states_of_its_session_and_private_rounds(
    settings: Settings, server_config: RunConfig, short: Path
) -> None:
    resident, socket = load_resident(settings, short), short / "t.sock"
    with trained(server_config, resident, socket):
        reply = ask(socket, lambda model: model.classify(TEXTS, MODELS))
        what = ask(socket, lambda model: model.describe())
    model, runtime = ClientModel.read(short, resident.config, 7), resident.runtime
    assert model.private is not None
    assert (reply.state.run, reply.state.round) == (model.run.run_id.hex(), 3)
    assert reply.state.has_private_part
    examples = [read_question({"text": text}, runtime.task)[0] for text in TEXTS]
    prompts = [runtime.tokenize(example) for example in examples]
    expected = {
        "base": runtime.base_scores(prompts),
        "global": runtime.scores(model.session.state, prompts),
        "personal": runtime.scores(model.session.state + model.private, prompts),
    }
    assert not np.array_equal(expected["global"], expected["personal"])
    for index, one in enumerate(reply.classifications):
        assert list(one.labels) == ["terrible", "great"]
        assert list(one.values) == ["0", "1"]
        for scores in one.scores:
            np.testing.assert_allclose(scores.scores, expected[scores.model][index], rtol=1e-5)
            assert sum(scores.probabilities) == pytest.approx(1)
            assert scores.label == int(np.argmax(scores.scores))
    assert (what.task, what.kind, what.generates) == ("sst2", "classification", True)
    assert list(what.labels) == ["terrible", "great"]
