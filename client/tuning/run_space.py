"""Creation of the space that a tuning run trains, in its initial state."""

from pathlib import Path

import torch

from samara.client.spaces.full import FullSpace, check_trainable
from samara.client.spaces.head import HeadSpace
from samara.client.spaces.low_rank import LoRAFASpace, LoRASpace
from samara.client.spaces.peft_adapter import DoRASpace, VeRASpace
from samara.client.spaces.prefix import PrefixSpace
from samara.client.spaces.scaling import ScalingPlan
from samara.client.spaces.space import Space
from samara.client.spaces.streamed import StreamedFullSpace
from samara.client.tuning.model_setup import ModelSetup
from samara.client.tuning.settings import TuneSettings
from samara.shared.model.replay_torch import backend_for

BLOCKS_FOLDER = "blocks"
"""Name of the folder for a streamed model's blocks, in a run that trains all parameters."""


_STORED_DTYPES = {
    "none": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
}


def make_space(setup: ModelSetup, blocks: Path = Path(BLOCKS_FOLDER)) -> Space:
    """Create the space that the settings name, in the loaded model.

    The space is in its initial state.

    Args:
        setup: setup whose model is unchanged since it was loaded.
        blocks: folder for the blocks of a streamed model whose parameters are trained.

    Raises:
        ModelError: if the model has no such space.
    """
    space = _make_space(setup, blocks)
    if setup.settings.differences == "one-point":
        space.signs = (1,)
    if setup.settings.gradients == "forward-mode":
        space.signs = ()  # nothing is perturbed
    return space


def _make_space(setup: ModelSetup, blocks: Path) -> Space:
    settings, base = setup.settings, setup.base
    backend = backend_for(torch.device(settings.model.torch_device), settings.threads)
    labels = setup.scorer.labels
    match settings.space:
        case "full" if setup.stream is not None:
            check_trainable(base)
            setup.stream.detach()
            stored = _STORED_DTYPES[settings.stream_compression]
            if settings.is_in_place:
                stored = base.network.dtype
            store = setup.loaded.make_trainable_store(blocks, stored)
            distribution = settings.adapter.distribution
            keep_copy = not settings.is_in_place
            space = StreamedFullSpace(base, store, backend, keep_copy, distribution=distribution)
            setup.stream = space.stream
            return space
        case "full":
            distribution = settings.adapter.distribution
            return FullSpace(base, backend, not settings.is_in_place, distribution)
        case "lora":
            return LoRASpace(base, settings.adapter, labels, backend)
        case "dora":
            return DoRASpace(base, settings.adapter, backend)
        case "vera":
            return VeRASpace(base, settings.adapter, backend)
        case "prefix":
            distribution = settings.adapter.distribution
            length, is_random = settings.prefix_length, settings.prefix_start == "random"
            width = settings.prefix_width
            return PrefixSpace(base, length, setup.root, backend, distribution, is_random, width)
        case "head":
            return HeadSpace(base, backend, settings.adapter.distribution)
        case _:
            return LoRAFASpace(base, settings.adapter, labels, backend)


def scaling_plan(settings: TuneSettings, space: Space, examples: int) -> ScalingPlan | None:
    """Return the plan of a run's diagonal scaling D, or None without scaling.

    Args:
        settings: complete settings.
        space: the run's space.
        examples: number of training examples.
    """
    modify = settings.scaling.modify
    if modify == "nothing":
        return None
    epoch = -(-examples // (settings.batch * settings.queries))
    return ScalingPlan(
        modify, len(space.groups.names), epoch if settings.scaling.every_epoch else 0
    )
