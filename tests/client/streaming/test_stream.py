"""A model with streamed blocks gives the bits of a model in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import instruction_with
from numpy.typing import NDArray
from streams import ONE_SHAPE_IN_EVERY_RUN, TASK, TEXTS, Shape, save_shape

from samara.client.forward.body import PerturbedBody
from samara.client.forward.grouping import GROUPINGS, Schedule
from samara.client.forward.resident import SINGLE_PASS, ResidentForward
from samara.client.forward.streamed import StreamedBody, StreamedForward
from samara.client.forward.trunk_cache import make_trunk_cache
from samara.client.streaming.loading import load_model
from samara.client.streaming.stream import DEFAULT_SCHEDULING, BlockStream, Scheduling
from samara.client.training.local_steps import take_local_steps
from samara.client.training.model_runtime import load_run
from samara.shared.model.lora_fa import Adapter, inject
from samara.shared.model.perturbations import Perturbations
from samara.shared.model.scorers import Prompt, Scorer, scorer_for
from samara.shared.protocol.directions import directions
from samara.shared.protocol.replay import zero_state
from samara.shared.settings.config import RunConfig
from samara.shared.settings.sections import AdapterSettings, ModelSettings

SEEDS = np.array([3, 2**40], np.uint64)
EPSILON = 0.25


class Rig:
    """A model with adapters and an engine; its blocks may be streamed."""

    def __init__(
        self,
        folder: Path,
        stream: str = "off",
        layers: str = "all",
        cached: bool = False,
        scheduling: Scheduling = DEFAULT_SCHEDULING,
        **settings: Any,
    ) -> None:
        given = {"path": str(folder), "stream": stream} | settings
        loaded = load_model(ModelSettings.model_validate(given, by_alias=False, by_name=True))
        self.base = base = loaded.base
        self.stream = loaded.store and BlockStream(base, loaded.store, scheduling=scheduling)
        streamed = loaded.store is not None
        body = StreamedBody if streamed else PerturbedBody
        with torch.inference_mode():
            self.scorer: Scorer = scorer_for(base, TASK, 40, PerturbedBody(base, 0))
        self.adapter: Adapter = inject(base, AdapterSettings(layers=layers, rank=2), 2)
        first = self.adapter.first_block
        cache = make_trunk_cache(base, first, 2**20) if cached else None
        self.forward: ResidentForward = (StreamedForward if streamed else ResidentForward)(
            self.adapter, self.scorer, body(base, first, cache)
        )
        self.prompts: list[Prompt] = [self.scorer.prompt(text) for text in TEXTS]

    def scores(self, schedule: Schedule = SINGLE_PASS) -> NDArray[np.float32]:
        layout = self.adapter.layout
        center = np.random.default_rng(0).normal(0, 0.1, layout.size).astype(np.float32)
        z = directions(SEEDS, layout.size, "gaussian")
        perturbations = Perturbations.from_arrays(
            layout, center, z, EPSILON, self.base.network.device
        )
        return self.forward.scores(perturbations, self.prompts, schedule)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", ONE_SHAPE_IN_EVERY_RUN)
def test_scores_around_an_adapter_are_the_same_bits(
    shape: str, tied: bool, shape_folder: Shape
) -> None:
    folder = shape_folder(shape, tied)
    schedule = Schedule("sequential", 3)
    wanted = Rig(folder).scores(schedule)
    assert np.isfinite(wanted).all()
    for stream in ("disk", "host"):
        np.testing.assert_array_equal(Rig(folder, stream).scores(schedule), wanted)


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("cached", [True, False])
def test_every_grouping_reads_a_block_once(
    grouping: Any, cached: bool, shape_folder: Shape
) -> None:
    folder = shape_folder("Llama", False)
    schedule = Schedule(grouping, 1)
    wanted = Rig(folder, layers="top:2", cached=cached).scores(schedule)
    rig = Rig(folder, "disk", layers="top:2", cached=cached)
    np.testing.assert_array_equal(rig.scores(schedule), wanted)
    assert rig.stream is not None
    rig.stream.free_buffers()  # nothing is being read while it is counted
    before = rig.stream.statistics.blocks
    np.testing.assert_array_equal(rig.scores(schedule), wanted)
    rig.stream.free_buffers()
    # One more comes ahead: the first of the next step.
    assert rig.stream.statistics.blocks - before <= (2 if cached else 4) + 1


@pytest.mark.parametrize(
    "scheduling", [Scheduling(overlap=False), Scheduling(reuse=False), Scheduling(False, False)]
)
def test_schedulings_differ_in_time_only(scheduling: Scheduling, shape_folder: Shape) -> None:
    folder = shape_folder("OPT", True)
    found = Rig(folder, "disk", scheduling=scheduling).scores()
    np.testing.assert_array_equal(found, Rig(folder).scores())


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_quantized_blocks_are_made_once_and_stream_as_they_are(
    quantization: str, shape_folder: Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = shape_folder("OPT", False)
    wanted = Rig(folder, quantization=quantization).scores()
    first = Rig(folder, "disk", quantization=quantization)
    made = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    assert len(made) == len(first.base.blocks)
    again = Rig(folder, "disk", quantization=quantization)
    assert made == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    for rig in (first, again):
        np.testing.assert_array_equal(rig.scores(), wanted)
    assert first.stream is not None
    assert max(file.stat().st_size for file in made) < (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("on_disk", "computed"), [("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_blocks_travel_in_the_type_of_the_checkpoint(
    on_disk: str, computed: str, tmp_path: Path
) -> None:
    folder = save_shape(tmp_path, "Llama", True, dtype=getattr(torch, on_disk))
    wanted = Rig(folder, dtype=computed).scores()
    for stream in ("disk", "host"):
        np.testing.assert_array_equal(Rig(folder, stream, dtype=computed).scores(), wanted)


def test_a_sharded_checkpoint_streams_too(tmp_path: Path) -> None:
    folder = save_shape(tmp_path, "Qwen", False, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    np.testing.assert_array_equal(Rig(folder, "disk").scores(), Rig(folder).scores())


def test_a_trainer_reports_the_same_bytes(settings: dict[str, Any]) -> None:
    reports = []
    for stream in ("off", "disk", "host"):
        runtime, source = load_run(RunConfig.of(settings | {"model.stream": stream}, "test"))
        state = zero_state(runtime.layout.size)
        instruction = instruction_with(layout_hash=runtime.layout.hash, queries=2, batch=4)
        data, copy = source.share_of(0, 3), runtime.copy_sharing_weights()
        reports.append(take_local_steps(copy, data, instruction, state).encode())
    assert reports[0] == reports[1] == reports[2]


@pytest.mark.gpu
@pytest.mark.parametrize("scheduling", [DEFAULT_SCHEDULING, Scheduling(overlap=False)])
def test_cuda_streams_give_the_bits_of_a_resident_model(
    scheduling: Scheduling, shape_folder: Shape
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    folder = shape_folder("OPT", True)
    wanted = Rig(folder, torch_device="cuda").scores()
    for stream in ("disk", "host"):
        found = Rig(folder, stream, torch_device="cuda", scheduling=scheduling).scores()
        np.testing.assert_array_equal(found, wanted)
