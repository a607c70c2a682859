"""All parameters trained block by block: the bits of a model in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from streams import ONE_SHAPE_IN_EVERY_RUN, TASK, TEXTS, Shape

from samara.client.estimators import mezo
from samara.client.estimators.prge import LossRequest, run_estimator
from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import Schedule
from samara.client.forward.resident import ResidentForward
from samara.client.forward.streamed import StreamedBody, StreamedForward
from samara.client.spaces import space as spaces
from samara.client.spaces.full import FullSpace
from samara.client.spaces.space import Space
from samara.client.spaces.streamed import StreamedFullSpace
from samara.client.streaming.block_store import BlockStore, HostStore, copy_to_files
from samara.client.streaming.loading import load_model
from samara.client.streaming.stream import Scheduling
from samara.client.tuning.descent import SGD, Adam, Descent, Momentum, UpdateRule, UpdateStep
from samara.shared.errors import ModelError
from samara.shared.model.perturbations import PerturbedAdapters
from samara.shared.model.scorers import scorer_for
from samara.shared.protocol.directions import WHOLE_BLOCKS
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.settings.sections import ModelSettings
from samara.shared.tasks.label_scores import cross_entropy

BACKEND = NumbaBackend(1)
EPSILON, RATE, STEPS = 1e-3, 1e-3, 50
LABELS = np.array([1, 0, 0, 1])
PLAIN = SGD()
LONG = {
    "OPT": (True, False),
    "Llama": (False, False),
    "Qwen": (True, True),
    "GPT-NeoX": (False, True),
    "BERT": (True, False),
}
"""For each shape with 50 steps: whether its head is tied, and whether steps keep a copy."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide tensors into several chunks, differently from a resident model."""
    monkeypatch.setattr(spaces, "CPU_CHUNK", WHOLE_BLOCKS)
    monkeypatch.setattr(StreamedFullSpace, "chunk", 1000)


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
        loaded = load_model(ModelSettings.model_validate(settings, by_alias=False, by_name=True))
        base = loaded.base
        if to is None or loaded.store is None:
            self.space = FullSpace(base, BACKEND, keep_copy)
            body = PerturbedBody(base, 0)
        else:
            kept = travels or (torch.float32 if keep_copy else base.network.dtype)
            store: BlockStore = (
                HostStore(loaded.store, kept, model_dtype=base.network.dtype)
                if tier == "host"
                else copy_to_files(loaded.store, to, kept, base.network.dtype)
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

    def run(self, perturbations: PerturbedAdapters) -> NDArray[np.float32]:
        return self.forward.scores(perturbations, self.prompts, Schedule(micro_batch=3))

    def losses_of(self, request: LossRequest) -> NDArray[np.float64]:
        def run(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
            prompts = [self.prompts[i] for i in request.batch]
            return self.forward.scores(perturbations, prompts, Schedule(micro_batch=2))

        scores = self.space.evaluate(run, request.seeds, request.epsilon)
        return cross_entropy(scores, LABELS[request.batch])

    def train(
        self,
        steps: int,
        queries: int = 1,
        update: UpdateRule = PLAIN,
        hold: bool = False,
        after_step: Callable[[], None] = lambda: None,
    ) -> list[float]:
        """Take steps with the engine's MeZO estimator; return all measured numbers."""
        descent = Descent(self.space, update, hold)
        measured = []
        for step in range(steps):
            seeds = np.arange(queries, dtype=np.uint64) + np.uint64(1000 * step)
            batches = np.random.default_rng(step).permuted(
                np.tile(np.arange(4), (queries, 1)), axis=1
            )
            found = run_estimator(
                mezo.mezo_estimator(seeds, batches[:, :3], EPSILON), self.losses_of
            )
            measured += [*found.gradients.tolist(), found.mean_loss]
            descent.step(UpdateStep(seeds, found.gradients, RATE, EPSILON))
            after_step()
        return measured


@pytest.mark.parametrize("keep_copy", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", ONE_SHAPE_IN_EVERY_RUN)
def test_steps_and_a_flush_are_the_bits_of_a_resident_model(
    shape: str, tied: bool, keep_copy: bool, shape_folder: Shape, tmp_path: Path
) -> None:
    steps = STEPS if (tied, keep_copy) == LONG.get(shape) else 3
    folder = shape_folder(shape, tied)
    resident = Rig(folder, keep_copy=keep_copy)
    begin = resident.space.digest()
    wanted = resident.train(steps)
    streamed = Rig(folder, tmp_path, keep_copy=keep_copy)
    assert streamed.space.state == resident.space.state
    assert streamed.space.digest() == begin
    assert streamed.train(steps) == wanted
    assert streamed.space.digest() == resident.space.digest() != begin
    np.testing.assert_array_equal(
        streamed.space.evaluate(streamed.run), resident.space.evaluate(resident.run)
    )


@pytest.mark.parametrize(
    "streaming",
    [
        {"scheduling": Scheduling(overlap=False)},
        {"scheduling": Scheduling(reuse=False)},
        {"deferred": False},
        {"deferred": False, "scheduling": Scheduling(False, False)},
        {"tier": "host"},
    ],
)
@pytest.mark.parametrize("keep_copy", [False, True])
def test_ablations_differ_in_time_only(
    streaming: dict[str, Any], keep_copy: bool, shape_folder: Shape, tmp_path: Path
) -> None:
    folder = shape_folder("OPT", True)
    resident = Rig(folder, keep_copy=keep_copy)
    streamed = Rig(folder, tmp_path, keep_copy=keep_copy, **streaming)
    assert streamed.train(3, queries=2) == resident.train(3, queries=2)
    assert streamed.space.digest() == resident.space.digest()


def test_a_block_moves_once_per_step(shape_folder: Shape, tmp_path: Path) -> None:
    moved = {}
    for deferred in (True, False):
        rig = Rig(shape_folder("Llama", True), tmp_path / str(deferred), deferred=deferred)
        assert isinstance(rig.space, StreamedFullSpace)
        rig.train(2)
        rig.space.stream.free_buffers()  # nothing is being read while it is counted
        before = rig.space.stream.statistics.blocks
        rig.train(4)
        rig.space.stream.free_buffers()
        moved[deferred] = (rig.space.stream.statistics.blocks - before) / 4
    assert moved[True] <= 4 + 1  # the first one comes ahead
    assert moved[False] >= 2 * 4


def test_the_store_is_up_to_date_after_a_flush(shape_folder: Shape, tmp_path: Path) -> None:
    rig = Rig(shape_folder("Llama", True), tmp_path)
    assert isinstance(rig.space, StreamedFullSpace)
    rig.train(2)

    def stored() -> list[bytes]:
        rig.space.stream.finish_writes()  # type: ignore[attr-defined]
        return [file.read_bytes() for file in sorted(tmp_path.glob("*.safetensors"))]

    before = stored()
    rig.space.flush()
    after = stored()
    assert all(one != other for one, other in zip(before, after, strict=True))
    rig.space.flush()
    assert stored() == after


@pytest.mark.parametrize("update", [Momentum(0.9), Adam()])
def test_moments_are_made_anew_from_the_history(
    update: UpdateRule, shape_folder: Shape, tmp_path: Path
) -> None:
    folder = shape_folder("Llama", True)
    resident, streamed = Rig(folder), Rig(folder, tmp_path)
    resident.train(4, update=update, hold=True)
    streamed.train(4, update=update)
    assert streamed.space.digest() == resident.space.digest()


@pytest.mark.parametrize("travels", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_what_travels_compressed_is_rounded_once_per_step(
    travels: torch.dtype, shape_folder: Shape, tmp_path: Path
) -> None:
    folder = shape_folder("GPT-NeoX", False)
    resident, streamed = Rig(folder), Rig(folder, tmp_path, travels=travels)
    assert streamed.space.state == f"{str(travels).removeprefix('torch.')}, streamed"

    def rounded() -> None:
        first = 0
        for tensor in resident.space.tensors:
            if ".layers." in tensor.name:
                values = resident.space.values(first, tensor.size)
                resident.space.assign(first, values.to(travels).float())
            first += tensor.size

    rounded()
    wanted = resident.train(4, after_step=rounded)
    assert streamed.train(4) == wanted
    assert isinstance(streamed.space, StreamedFullSpace)
    streamed.space.flush()
    assert streamed.space.digest() == resident.space.digest()


def test_half_precision_points_are_made_from_float32(shape_folder: Shape, tmp_path: Path) -> None:
    folder = shape_folder("Llama", False)
    resident, streamed = Rig(folder, dtype="bfloat16"), Rig(folder, tmp_path, dtype="bfloat16")
    assert streamed.train(3) == resident.train(3)
    assert streamed.space.digest() == resident.space.digest()


def test_a_failed_step_leaves_theta_where_it_was(shape_folder: Shape, tmp_path: Path) -> None:
    rig = Rig(shape_folder("Llama", True), tmp_path)
    before = rig.space.digest()

    def fails(perturbations: PerturbedAdapters) -> NDArray[np.float32]:
        with rig.space.at_stage(1) as stand:  # type: ignore[attr-defined]
            stand(0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rig.space.evaluate(fails, np.array([7], np.uint64), 0.5)
    assert rig.space.digest() == before
    fresh = Rig(shape_folder("Llama", True))
    np.testing.assert_array_equal(rig.space.evaluate(rig.run), fresh.space.evaluate(fresh.run))


def test_quantized_weights_are_refused(shape_folder: Shape) -> None:
    settings = {"path": str(shape_folder("OPT", True)), "quantization": "int8", "stream": "disk"}
    loaded = load_model(ModelSettings.model_validate(settings, by_alias=False, by_name=True))
    assert loaded.store is not None
    with pytest.raises(ModelError, match="quantized weights cannot be trained"):
        StreamedFullSpace(loaded.base, loaded.store, BACKEND)
