"""The settings of a tuning run in one frozen object, which reports all mistakes together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from samara.client.tuning.combinations import mistakes_in
from samara.client.tuning.methods import (
    ADAM_RATE,
    BATCH,
    BY_PEFT,
    EPSILON,
    LSP_RATE,
    QUERIES,
    SPACES,
)
from samara.client.tuning.setting_fields import TuneFields
from samara.shared.settings.choices import AUTO, INNER, READOUT_BATCH
from samara.shared.settings.setting import Scalar, flattened, nest, read_recorded

IDENTITY_FILE = "tune.json"
"""Name of the file with all inputs that determine a run's results, in the run's folder."""


class TuneSettings(TuneFields):
    """The settings of a tuning run, checked together; 0 and ``auto`` mean the method's defaults."""

    @model_validator(mode="before")
    @classmethod
    def _choose_layers(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        flat = flattened(settings)
        if flat.get("adapter.layers", AUTO) == AUTO and "adapter" not in flat:
            flat["adapter.layers"] = INNER
        return nest(flat)

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if mistakes := mistakes_in(self):
            raise ValueError("\n".join(mistakes))
        return self

    @staticmethod
    def recorded(folder: Path) -> Mapping[str, Any]:
        """Return the settings of the run that was begun in a folder; empty without a run."""
        config = read_recorded(folder / IDENTITY_FILE).get("config")
        return config if isinstance(config, dict) else {}

    def identity(self) -> dict[str, Scalar]:
        """Return the settings that are part of a run's identity, by dotted key.

        Settings of subspaces are left out if there are no subspaces. The optimizer has the key
        ``method``, its name when runs first had an identity.
        """
        identity = super().identity()
        identity["method"] = identity.pop("optimizer")
        if self.optimizer != "lsp":
            identity = {k: v for k, v in identity.items() if not k.startswith("lsp.")}
        return identity

    def complete(self, threads: int) -> Self:
        """Return the settings with a value in place of every 0 and ``auto`` that means a default.

        Args:
            threads: number of threads of this machine.
        """
        batch = READOUT_BATCH if not self.adapter.inner_layers else BATCH
        changes: dict[str, object] = {
            "threads": self.threads or threads,
            "batch": self.batch or batch,
            "in_place": self.is_in_place,
        }
        if self.in_place == "auto" and self.out and (begun := self.recorded(Path(self.out))):
            changes["in_place"] = begun.get("in-place", False)
        needs_all_blocks = (
            self.differentiates or self.trained_space in BY_PEFT or self.classifier != "label-words"
        )
        if self.model.stream == "auto" and needs_all_blocks:
            changes["model"] = self.model.model_copy(update={"stream": "off"})
        if self.trains:
            where = SPACES[self.optimizer][0] if self.space == "auto" else self.space
            changes["space"] = where
            if where == "prefix" and self.prefix_width:
                where = "lora"  # a prefix network consists of linear layers, like LoRA
            if self.learning_rate == "auto" and not self.estimates_its_rate:
                changes["learning_rate"] = LSP_RATE if self.optimizer == "lsp" else ADAM_RATE[where]
            if not self.is_first_order:
                changes["queries"] = self.queries or QUERIES.get(self.optimizer, 1)
                changes["epsilon"] = self.epsilon or EPSILON[where]
        return self.model_copy(update=changes)
