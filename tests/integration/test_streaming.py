"""A model whose blocks are streamed gives the bits of one that is in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from streams import SHAPES, TASK, TEXTS, save_shape

from client.forward.body import Body, trunk_cache
from client.forward.grouping import GROUPINGS, Schedule
from client.forward.resident import ONE_PASS, ResidentForward
from client.forward.streamed import StreamedBody, StreamedForward
from client.streaming.loading import load
from client.streaming.stream import AS_MEANT, BlockStream, Scheduling
from shared.config import AdapterSettings, ModelSettings
from shared.directions import directions
from shared.model.lora_fa import Adapter, Points, inject
from shared.model.scorers import Prompt, Scorer, scorer_for

Shape = Callable[[str, bool], Path]
SEEDS = np.array([3, 2**40], np.uint64)
EPSILON = 0.25


@pytest.fixture(scope="session")
def shape_folder(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    folders: dict[tuple[str, bool], Path] = {}

    def folder_of(shape: str, tied: bool) -> Path:
        key = shape, tied
        if key not in folders:
            folders[key] = save_shape(tmp_path_factory.mktemp(shape), shape, tied)
        return folders[key]

    return folder_of


class Rig:
    """A model with adapters and an engine; streamed where it is told so."""

    def __init__(
        self,
        folder: Path,
        stream: str = "off",
        layers: str = "all",
        cached: bool = False,
        scheduling: Scheduling = AS_MEANT,
        **settings: Any,
    ) -> None:
        given = {"path": str(folder), "stream": stream} | settings
        loaded = load(ModelSettings.model_validate(given, by_alias=False, by_name=True))
        self.base = base = loaded.base
        self.stream = loaded.store and BlockStream(base, loaded.store, scheduling=scheduling)
        streamed = loaded.store is not None
        body = StreamedBody if streamed else Body
        with torch.inference_mode():
            self.scorer: Scorer = scorer_for(base, TASK, 40, Body(base, 0))
        self.adapter: Adapter = inject(base, AdapterSettings(layers=layers, rank=2), 2)
        first = self.adapter.first_block
        cache = trunk_cache(base, first, 2**20) if cached else None
        self.forward: ResidentForward = (StreamedForward if streamed else ResidentForward)(
            self.adapter, self.scorer, body(base, first, cache)
        )
        self.prompts: list[Prompt] = [self.scorer.prompt(text) for text in TEXTS]

    def scores(self, schedule: Schedule = ONE_PASS) -> NDArray[np.float32]:
        layout = self.adapter.layout
        center = np.random.default_rng(0).normal(0, 0.1, layout.size).astype(np.float32)
        z = directions(SEEDS, layout.size, "gaussian")
        points = Points.at(layout, center, z, EPSILON)
        return self.forward.scores(points, self.prompts, schedule)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_around_an_adapter_are_the_same_bits(
    shape: str, tied: bool, shape_folder: Shape
) -> None:
    folder = shape_folder(shape, tied)
    for schedule in (Schedule(), Schedule("sequential", 3)):
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
    np.testing.assert_array_equal(rig.scores(schedule), wanted)
