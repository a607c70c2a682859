"""Export of a trained model for other software, as an adapter for PEFT or as a whole model."""

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.card_base import CardBase
from samara.client.personal.model_card import CARD_FILE, model_card
from samara.client.personal.own_words import OwnWords, OwnWordsFile
from samara.client.personal.readout_file import READOUT_FILE, write_readout
from samara.client.tuning.model_export import export_model
from samara.shared.errors import ModelError, SamaraError
from samara.shared.model.gguf_adapter import write_gguf_adapter
from samara.shared.model.loading import BaseModel, load_base_model, load_structure
from samara.shared.model.merge import merge_adapter
from samara.shared.model.peft import WEIGHTS_FILE, write_peft_adapter
from samara.shared.protocol.layout import ADAPTER_GROUP, LABEL_BIAS_GROUP, READOUT_GROUP, Layout
from samara.shared.settings.sections import EMBEDDED_MODEL, ModelAndTask
from samara.shared.storage.files import make_folder, sync_folder, write_durably
from samara.shared.tasks.catalog import task_of

_OTHER = "name another folder"
LeftOut = dict[str, list[float]]
"""Trained numbers for which the file formats have no place, by the name of their tensor."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A base model with its trained numbers.

    Attributes:
        config: settings of the run, with paths of this machine.
        layout: layout of the adapter.
        model_id: model id of the base model, 32 bytes.
        numbers: weights of the adapter, float32 [elements].
        about: sentences for the model card that identify the model.
        trained_a: trained matrix A of every adapted layer, float32 [r, in]; None if A is frozen.
        own_words: own words that are mixed into the model's probabilities; None without any.
    """

    config: ModelAndTask
    layout: Layout
    model_id: bytes
    numbers: NDArray[np.float32]
    about: str
    trained_a: Sequence[NDArray[np.float32]] | None = None
    own_words: OwnWords | None = None

    def write_peft(self, folder: Path) -> LeftOut:
        """Write a LoRA adapter for PEFT, a readout as a separate file, and a model card.

        Args:
            folder: folder for the files; it is created if it is missing.

        Raises:
            SamaraError: if the base model is not that of the run or cannot be used, or the folder
                cannot be written.
        """
        model = self.config.model
        base = load_structure(model.path, model.family, self.config.adapter.depth)
        self._check(base)
        try:
            files = []
            if self.layout.group(ADAPTER_GROUP):
                name = name_of_base(self.config, base)
                write_peft_adapter(base, name, self.layout, self.numbers, folder, self.trained_a)
                files.append(WEIGHTS_FILE)
            return self._write_rest(base, folder, files, merged=False)
        except OSError as error:
            raise SamaraError(f"{folder}: cannot be written: {error.strerror}; {_OTHER}") from error

    def write_gguf(self, folder: Path, model_file: Path) -> LeftOut:
        """Write a LoRA adapter for llama.cpp, and a Modelfile for Ollama.

        Args:
            folder: folder for the files; it is created if it is missing.
            model_file: GGUF file of the base model, in any quantization.

        Raises:
            SamaraError: if there is a readout, which llama.cpp does not compute; if the base model
                or the file is not that of the run, or cannot be used; or if the folder cannot be
                written.
        """
        if self.layout.group(READOUT_GROUP) or not self.layout.group(ADAPTER_GROUP):
            raise ModelError(
                "llama.cpp does not compute a readout: use the model with samara adapter apply or "
                "samara client serve, or train with adapter.layers = top:1"
            )
        model = self.config.model
        base = load_base_model(model.path, model.family)
        self._check(base)
        try:
            write_gguf_adapter(base, model_file, self.layout, self.numbers, folder, self.trained_a)
        except OSError as error:
            raise SamaraError(f"{folder}: cannot be written: {error.strerror}") from error
        return self._left_out({ADAPTER_GROUP})

    def write_merged(self, folder: Path) -> LeftOut:
        """Write a whole model, which `from_pretrained` loads, with the adapter in its weights.

        A base model that is quantized in training is written in its compute type. Its scores
        therefore differ from the trainer's by the effect of quantization.

        Args:
            folder: folder for the files; it must not exist.

        Raises:
            SamaraError: if the base model is not that of the run or cannot be used, or the folder
                cannot be written.
        """
        model = self.config.model
        depth = self.config.adapter.depth
        base = load_base_model(model.path, model.family, dtype=model.dtype, depth=depth)
        self._check(base)
        merge_adapter(base, self.layout, self.numbers, self.trained_a)
        try:
            export_model(base, folder)
            return self._write_rest(base, folder, [], merged=True)
        except OSError as error:
            raise SamaraError(f"{folder}: cannot be written: {error.strerror}; {_OTHER}") from error

    def _check(self, base: BaseModel) -> None:
        if base.model_id != self.model_id:
            raise ModelError(
                f"{base.folder}: this is not the base model of the run, whose id begins with "
                f"{self.model_id.hex()[:12]}; restore the files of the run's base model, or name "
                "its folder"
            )

    def _write_rest(self, base: BaseModel, folder: Path, files: list[str], merged: bool) -> LeftOut:
        """Write the readout and the model card, and return the numbers that were left out.

        Raises:
            OSError: if the folder cannot be written.
        """
        layout, groups = self.layout, {ADAPTER_GROUP}
        if layout.group(READOUT_GROUP):
            write_readout(self.config, layout, self.numbers, folder)
            files.append(READOUT_FILE)
            groups |= {READOUT_GROUP, LABEL_BIAS_GROUP}
        left_out = self._left_out(groups)
        task = task_of(self.config)
        described = CardBase.of(self.config.model, base, task)
        has_own_words = self.own_words is not None and not self.own_words.change_nothing
        card = model_card(
            self.about, described, task, merged, files, left_out, has_own_words=has_own_words
        )
        make_folder(folder)
        if has_own_words:
            OwnWordsFile(folder).write(self.own_words)
        write_durably(folder / CARD_FILE, card.encode())
        return left_out

    def _left_out(self, groups: Collection[str]) -> LeftOut:
        """Return the values of every tensor outside the given groups, by the tensor's name."""
        return {
            tensor.name: self.numbers[self.layout.tensor_slice(tensor.name)[0]].tolist()
            for tensor in self.layout.tensors
            if tensor.group not in groups
        }


def write_new_folder(folder: Path, write: Callable[[Path], LeftOut]) -> LeftOut:
    """Write a folder completely or not at all.

    Args:
        folder: folder that must be empty or missing.
        write: function that writes a folder.

    Raises:
        SamaraError: if the folder is not empty or cannot be written.
    """
    whole = folder.absolute()  # "." has no name
    unfinished = whole.parent / f"{whole.name}.unfinished"
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SamaraError(f"{folder}: this is not an empty folder; name a new folder")
        shutil.rmtree(unfinished, ignore_errors=True)
        make_folder(whole.parent)
        left_out = write(unfinished)
        unfinished.replace(whole)
        sync_folder(whole.parent)
        return left_out
    except OSError as error:
        raise SamaraError(f"{folder}: cannot be written: {error.strerror}; {_OTHER}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def name_of_base(config: ModelAndTask, base: BaseModel) -> str:
    """Return the hub id or folder under which other software loads the base model."""
    return str(base.folder) if config.model.path == EMBEDDED_MODEL else config.model.path
