"""Export of a tuned model to a folder that PEFT or transformers loads, with a model card."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from samara.client.personal.card_base import CardBase
from samara.client.personal.model_card import CARD_FILE, model_card
from samara.client.personal.model_folder import (
    LeftOut,
    TrainedModel,
    name_of_base,
    write_new_folder,
)
from samara.client.spaces.head import HeadSpace
from samara.client.spaces.low_rank import LoRAFASpace, LoRASpace
from samara.client.spaces.peft_adapter import PeftSpace
from samara.client.spaces.prefix import PrefixSpace
from samara.client.spaces.space import FlatSpace
from samara.client.tuning.classifier import ClassifierScorer, write_classifier
from samara.client.tuning.finished_tuning import FinishedTuning
from samara.client.tuning.model_export import export_model
from samara.client.tuning.model_setup import ModelSetup
from samara.shared.errors import ModelError
from samara.shared.model.peft import WEIGHTS_FILE, write_peft_prefix
from samara.shared.storage.files import make_folder, write_durably


def export_tuned(folder: Path, out: Path, gguf: Path | None = None) -> LeftOut:
    """Write the best state of a finished `samara tune` run to a new folder.

    Low-rank adapters and a prefix become PEFT adapters. A readout becomes a separate file. A
    trained head, or trained parameters of the model itself, become a complete model. A classifier
    that replaces label words becomes a separate file in the model's folder.

    Args:
        folder: folder of the run.
        out: folder to write; it must be empty or missing.
        gguf: GGUF file of the base model, to write a low-rank adapter for llama.cpp.

    Returns:
        Values of the tensors that no file format can contain, by name; they are left out.

    Raises:
        SamaraError: if the run or the base model cannot be used, or the folder cannot be written.
    """
    run = FinishedTuning.at(folder)

    def write(unfinished: Path) -> LeftOut:
        setup = run.load()
        space = run.restore(setup)
        if gguf is not None and not isinstance(space, LoRASpace | LoRAFASpace):
            raise ModelError(
                f"{folder}: llama.cpp loads only low-rank adapters (--space lora or lora-fa); "
                "leave out --gguf"
            )
        if isinstance(space, HeadSpace):
            space.replace_head()
        if isinstance(space, HeadSpace) or not isinstance(space, FlatSpace):
            scorer = setup.scorer
            classifier = scorer.take_out() if isinstance(scorer, ClassifierScorer) else None
            export_model(setup.base, unfinished)
            if classifier is not None:
                write_classifier(classifier, unfinished)
            _write_card(run, setup, unfinished, [])
            return {}
        theta = space.values(0, space.size).cpu().numpy()
        if isinstance(space, PrefixSpace):
            if setup.base.family == "masked":
                raise ModelError(
                    f"{folder}: cannot be exported, because PEFT supports prefixes only for causal "
                    "language models; use the run with `samara adapter apply`"
                )
            name = name_of_base(run.settings, setup.base)
            with space.computing_with(torch.from_numpy(theta)) as trained:
                parts = [part[0].cpu().numpy() for part in space.keys_and_values(trained)]
            if len({part.shape for part in parts}) > 1:
                raise ModelError(
                    f"{setup.base.folder}: its layers have keys of different sizes, which PEFT's "
                    "prefix tuning does not support; use the run with `samara adapter apply`"
                )
            write_peft_prefix(setup.base, name, np.stack(parts), unfinished)
            _write_card(run, setup, unfinished, [WEIGHTS_FILE])
            return {}
        if isinstance(space, PeftSpace):
            space.write(unfinished, name_of_base(run.settings, setup.base))
            _write_card(run, setup, unfinished, [WEIGHTS_FILE])
            return {}
        layout = space.adapter.layout
        trained_a = None
        if isinstance(space, LoRASpace):
            trained_a, theta = _split_a(space, theta)
        model_id = setup.base.model_id
        model = TrainedModel(run.settings, layout, model_id, theta, run.about, trained_a)
        return model.write_peft(unfinished) if gguf is None else model.write_gguf(unfinished, gguf)

    return write_new_folder(out, write)


def _split_a(
    space: LoRASpace, theta: NDArray[np.float32]
) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
    """Return the matrix A of every adapted layer, and the other trained numbers.

    The other numbers, float32 [elements], have the order of the adapter's layout.
    """
    count = len(space.tensors) - len(space.adapter.layout.tensors)
    matrices = []
    first = 0
    for tensor in space.tensors[:count]:
        matrices.append(theta[first : first + tensor.size].reshape(tensor.shape))
        first += tensor.size
    return matrices, theta[first:]


def _write_card(run: FinishedTuning, setup: ModelSetup, folder: Path, files: list[str]) -> None:
    base = CardBase.of(run.settings.model, setup.base, setup.task)
    scores = run.settings.classifier
    card = model_card(run.about, base, setup.task, not files, files, {}, scores)
    make_folder(folder)
    write_durably(folder / CARD_FILE, card.encode())
