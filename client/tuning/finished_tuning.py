"""The best state of a finished `samara tune` run, rebuilt in the run's model.

A zeroth-order run leaves seeds and scalars, from which the state is replayed. A first-order run
leaves the trained tensors themselves. Rebuilding never needs the data.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from samara.client.spaces.space import FlatSpace, Space
from samara.client.tuning.baselines.first_order import BEST_FILE, name_of_theta
from samara.client.tuning.classifier import ClassifierScorer, read_classifier
from samara.client.tuning.model_setup import ModelSetup
from samara.client.tuning.run import read_result
from samara.client.tuning.run_space import make_space, scaling_plan
from samara.client.tuning.settings import IDENTITY_FILE, TuneSettings
from samara.client.tuning.tensor_file import TensorFile, digest_of
from samara.client.tuning.trajectory import read_trajectory
from samara.client.tuning.tuning_folder import MODEL_PATH, hash_of
from samara.client.tuning.zeroth_order import TRAJECTORY_FILE, update_rule
from samara.shared.errors import ConfigError, ModelError
from samara.shared.settings.setting import with_current_keys


def is_tuning_folder(folder: Path) -> bool:
    """Return whether a folder belongs to a `samara tune` run rather than a federation."""
    return (folder / IDENTITY_FILE).exists()


@dataclass(frozen=True)
class FinishedTuning:
    """A finished `samara tune` run, whose best state can be rebuilt.

    Attributes:
        folder: folder of the run.
        result: content of the run's result.json.
        settings: settings of the run, changed so that all blocks of the model are in memory.
    """

    folder: Path
    result: dict[str, Any]
    settings: TuneSettings

    @classmethod
    def at(cls, folder: Path) -> "FinishedTuning":
        """Open a finished run.

        Raises:
            ConfigError: if the run is not finished, is damaged, trained nothing, or cannot be
                rebuilt.
        """
        result = read_result(folder)
        config = dict(result["config"])
        place = result.get(MODEL_PATH)
        if place is None:
            raise ConfigError(
                f"{folder}: the result was written by an earlier version of Samara and does not "
                "name the path of the base model; repeat the run"
            )
        if config.get("stream-compression", "none") != "none":
            raise ConfigError(
                f"{folder}: the run rounded its parameters to {config['stream-compression']} while "
                "it streamed them, which cannot be repeated here; tune without stream-compression"
            )
        config = with_current_keys(TuneSettings, config) | {"model.path": place}
        settings = TuneSettings.of(config, str(folder))
        if not settings.trains:
            raise ConfigError(
                f"{folder}: {settings.optimizer} trains nothing, so its model is the base model; "
                "name the run of another optimizer"
            )
        return cls(folder, result, settings)

    @property
    def about(self) -> str:
        """Sentence for the model card that identifies the model."""
        return (
            f"The model after step {self.result['best_step']} of {self.settings.steps} of samara "
            f"tune, optimizer {self.settings.optimizer}, space {self.settings.space}."
        )

    def load(self) -> ModelSetup:
        """Load the base model.

        Raises:
            SamaraError: if the model differs from the model of the run, or cannot be used.
        """
        setup = ModelSetup(self.settings)
        setup.load()
        if setup.base.model_id.hex() != self.result["model_id"]:
            raise ModelError(
                f"{setup.base.folder}: the model is not the model of {self.folder}, whose model id "
                f"begins with {self.result['model_id'][:12]}; restore the model's files"
            )
        if isinstance(setup.scorer, ClassifierScorer):
            setup.begin_classifier(read_classifier(self.folder))
        return setup

    def restore(self, setup: ModelSetup) -> Space | None:
        """Set a loaded base model to the run's best state.

        Returns:
            The space in this state; None if the model's own weights were trained.

        Raises:
            SamaraError: if the run's files are damaged, or do not give the recorded state.
        """
        space, digest = (
            self._trained(setup) if self.settings.is_first_order else self._replayed(setup)
        )
        if digest != self.result["digest"]:
            raise ModelError(
                f"{self.folder}: the files do not have the state in which the run ended; restore "
                "the files, or repeat the run"
            )
        return space

    def _replayed(self, setup: ModelSetup) -> tuple[Space, str]:
        space = make_space(setup)
        examples = self.result["examples"]["train"]
        space.scaling_plan = scaling_plan(self.settings, space, examples)
        trajectory = read_trajectory(self.folder / TRAJECTORY_FILE)
        best = replace(trajectory, records=trajectory.records[: self.result["best_step"]])
        best.rebuild(space, update_rule(self.settings), setup.base.model_id, hold_moments=True)
        return space, space.digest().hex()

    def _trained(self, setup: ModelSetup) -> tuple[Space | None, str]:
        space = None if self.settings.space in ("full", "linear") else make_space(setup)
        expected = {}
        if space is not None:
            assert isinstance(space, FlatSpace)
            expected[name_of_theta(space.kind)] = space.values(0, space.size)
        identity = json.loads((self.folder / IDENTITY_FILE).read_text(encoding="utf-8"))
        file = TensorFile(self.folder / BEST_FILE, hash_of(identity).hex())
        if (step := file.step()) != self.result["best_step"]:
            raise file.damaged(f"it has the state after step {step}")
        tensors = file.read(expected)
        if space is not None:
            theta = tensors[name_of_theta(space.kind)]
            space.assign(0, theta.to(setup.base.network.device))
            return space, digest_of({name_of_theta(space.kind): theta})
        parameters = dict(setup.base.network.named_parameters())
        in_order = {name: tensors[name] for name in parameters if name in tensors}
        with torch.no_grad():
            for name, tensor in in_order.items():
                parameters[name].copy_(tensor)
        return None, digest_of(in_order)
