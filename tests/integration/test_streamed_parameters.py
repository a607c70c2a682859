"""All parameters trained block by block: the bits of a model that is in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from streams import SHAPES, TASK, TEXTS, save_shape

from client.descent import SGD, Descent, Step, Update
from client.estimators import mezo
from client.estimators.prge import Trial, carried_out
from client.forward.body import Body
from client.forward.grouping import Schedule
from client.forward.resident import ResidentForward
from client.forward.streamed import StreamedBody, StreamedForward
from client.spaces import space as spaces
from client.spaces import streamed as streamed_spaces
from client.spaces.full import FullSpace
from client.spaces.space import Space
from client.spaces.streamed import StreamedFullSpace
from client.streaming.loading import load
from client.streaming.store import BlockStore, HostStore, copied_to_files
from shared.config import ModelSettings
from shared.directions import WHOLE_BLOCKS
from shared.model.lora_fa import Adapters
from shared.model.scorers import scorer_for
from shared.replay_numba import NumbaBackend
from shared.tasks.objectives import cross_entropy

BACKEND = NumbaBackend(1)
EPSILON, RATE, STEPS = 1e-3, 1e-3, 50
LABELS = np.array([1, 0, 0, 1])
PLAIN = SGD()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are worked on in several parts, which are not those of a resident model."""
    monkeypatch.setattr(spaces, "CPU_CHUNK", WHOLE_BLOCKS)
    monkeypatch.setattr(streamed_spaces, "CPU_CHUNK", 1000)


class Rig:
    """A model whose parameters are all trained, resident or streamed."""

    space: Space
    forward: ResidentForward

    def __init__(
        self,
        folder: Path,
        to: Path | None = None,
        tier: str = "disk",
        keep_copy: bool = True,
        dtype: str = "float32",
        travels: torch.dtype | None = None,
        **streaming: Any,
    ) -> None:
        settings = {"path": str(folder), "dtype": dtype, "stream": tier if to else "off"}
        loaded = load(ModelSettings.model_validate(settings, by_alias=False, by_name=True))
        base = loaded.base
        if to is None or loaded.store is None:
            self.space = FullSpace(base, BACKEND, keep_copy)
            body = Body(base, 0)
        else:
            kept = travels or (torch.float32 if keep_copy else base.network.dtype)
            store: BlockStore = (
                HostStore(loaded.store, kept)
                if tier == "host"
                else copied_to_files(loaded.store, to, kept)
            )
            self.space = StreamedFullSpace(base, store, BACKEND, keep_copy, **streaming)
            body = StreamedBody(base, 0)
        with torch.inference_mode():
            self.scorer = scorer_for(base, TASK, 40, body)
        adapter = self.space.adapter
        self.forward = (
            StreamedForward(adapter, self.scorer, body, self.space)
            if isinstance(self.space, StreamedFullSpace) and isinstance(body, StreamedBody)
            else ResidentForward(adapter, self.scorer, body)
        )
        self.prompts = [self.scorer.prompt(text) for text in TEXTS]

    def run(self, points: Adapters) -> NDArray[np.float32]:
        return self.forward.scores(points, self.prompts, Schedule(micro_batch=3))

    def losses_of(self, trial: Trial) -> NDArray[np.float64]:
        def run(points: Adapters) -> NDArray[np.float32]:
            prompts = [self.prompts[i] for i in trial.batch]
            return self.forward.scores(points, prompts, Schedule(micro_batch=2))

        scores = self.space.evaluate(run, trial.seeds, trial.epsilon)
        return cross_entropy(scores, LABELS[trial.batch])

    def train(
        self, steps: int = STEPS, queries: int = 1, update: Update = PLAIN, hold: bool = False
    ) -> list[float]:
        """Steps with the engine's MeZO estimator; everything that was measured."""
        descent = Descent(self.space, update, hold)
        measured = []
        for step in range(steps):
            seeds = np.arange(queries, dtype=np.uint64) + np.uint64(1000 * step)
            batches = np.random.default_rng(step).permuted(
                np.tile(np.arange(4), (queries, 1)), axis=1
            )
            found = carried_out(mezo.estimate(seeds, batches[:, :3], EPSILON), self.losses_of)
            measured += [*found.gradients.tolist(), found.mean_loss]
            descent.step(Step(seeds, found.gradients, RATE, EPSILON))
        return measured


@pytest.fixture(scope="session")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    folders: dict[tuple[str, bool], Path] = {}

    def folder_of(shape: str, tied: bool) -> Path:
        if (shape, tied) not in folders:
            folder = tmp_path_factory.mktemp(shape)
            folders[shape, tied] = save_shape(folder, shape, tied)
        return folders[shape, tied]

    return folder_of


@pytest.mark.parametrize("keep_copy", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_fifty_steps_and_a_flush_are_the_bits_of_a_resident_model(
    shape: str,
    tied: bool,
    keep_copy: bool,
    shape_folder: Callable[[str, bool], Path],
    tmp_path: Path,
) -> None:
    folder = shape_folder(shape, tied)
    resident = Rig(folder, keep_copy=keep_copy)
    begin = resident.space.digest()
    wanted = resident.train()
    streamed = Rig(folder, tmp_path, keep_copy=keep_copy)
    assert streamed.space.digest() == begin
    assert streamed.train() == wanted
    assert streamed.space.digest() == resident.space.digest() != begin
    np.testing.assert_array_equal(
        streamed.space.evaluate(streamed.run), resident.space.evaluate(resident.run)
    )
