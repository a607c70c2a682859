"""The models of a finished run: predictions for texts, and exports for PEFT and transformers."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samara.client.personal.model_folder import write_new_folder
from samara.shared.errors import ModelError
from samara.shared.model.loading import load_base_model
from samara.shared.protocol.layout import ADAPTER_GROUP
from samara.simulations.exports.adapter import FinishedRun
from samara.simulations.exports.quick_look import LoadedModel, Text


class Model:
    """A model of a finished run: the frozen base model with the trained weights.

    >>> import samara
    >>> run = samara.simulate({"rounds": 1, "steps": 1, "data.clients": 2}, personal={"rounds": 0})
    >>> model = run.global_model()
    >>> sorted(model.probabilities("what a day")[0])
    ['hated', 'loved']
    >>> (model.save("exported") / "README.md").is_file()
    True
    """

    def __init__(self, run: FinishedRun, loaded: LoadedModel, client: int | None = None) -> None:
        self._loaded = loaded
        self._trained, self._config = run.trained_model(client), run.config

    def __repr__(self) -> str:
        return f"<{self._trained.about.removesuffix('.')}>"

    @property
    def numbers(self) -> NDArray[np.float32]:
        """Weights of the adapter, float32 [elements]."""
        return self._trained.numbers

    def probabilities(self, texts: Text | Sequence[Text]) -> list[dict[str, float]]:
        """Return the probability of every label of each text.

        Args:
            texts: one text or several texts. If the task reads several fields, each text is a
                mapping from field names to values.

        Raises:
            DataError: if a text lacks a field that the task reads, or the task has no labels.
        """
        several = [texts] if isinstance(texts, str | Mapping) else texts
        answers = self._loaded.probabilities(several, self.numbers)
        return [dict(zip(labels, own.tolist(), strict=True)) for labels, own in answers]

    def predict(self, texts: Text | Sequence[Text]) -> list[str]:
        """Return the most probable label of each text; see `probabilities`."""
        return [max(own, key=lambda label: own[label]) for own in self.probabilities(texts)]

    def save(self, folder: str | os.PathLike[str], merged: bool = False) -> Path:
        """Write the model to a new folder, with a model card, and return the folder.

        Args:
            folder: path of a folder that is empty or does not exist.
            merged: whether to write a complete model for transformers' `from_pretrained` instead of
                a PEFT adapter. A readout is a separate file in both cases.

        Raises:
            SamaraError: if the base model cannot be used, or the folder cannot be written.
        """
        write = self._trained.write_merged if merged else self._trained.write_peft
        out = Path(folder).resolve()
        write_new_folder(out, write)
        return out

    def to_peft(self) -> Any:
        """Return the base model with its LoRA adapter, a `peft.PeftModel`.

        Raises:
            ModelError: if weights outside the model's layers were trained, which PEFT cannot
                represent, or if PEFT is not installed.
        """
        groups = {tensor.group for tensor in self._trained.layout.tensors}
        if outside := sorted(groups - {ADAPTER_GROUP}):
            raise ModelError(
                f"{self._trained.about} PEFT cannot represent a {' or a '.join(outside)}: use "
                f"predict() or save(), or train with {self._settings_for_peft()}"
            )
        try:
            import peft
        except ImportError as error:
            raise ModelError(
                "PEFT is not installed; install it with: pip install 'samara-fl[peft]'"
            ) from error
        model = self._trained.config.model
        base = load_base_model(model.path, model.family, model.torch_device, dtype=model.dtype)
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            # PEFT calls a deprecated interface of transformers
            warnings.simplefilter("ignore", FutureWarning)
            self._trained.write_peft(Path(folder))
            return peft.PeftModel.from_pretrained(base.network, folder)

    def _settings_for_peft(self) -> str:
        """Return the settings to change so that a run trains only weights inside the layers."""
        config = self._config
        changed = {}
        if config.adapter.has_readout:
            changed["adapter.layers"] = config.adapter.inner_layers or "top:1"
        if config.adapter.label_bias or config.adapter.has_readout:  # by default top:1 has one
            changed["adapter.label-bias"] = "false"
        if config.method == "readout":
            changed["method"] = "finetune"
        return " and ".join(f"{name} = {value}" for name, value in changed.items())
