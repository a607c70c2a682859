"""Settings of a step whose cost is estimated without a scenario."""

from typing import Literal

from samara.shared.settings.setting import Section, Settings, Text, setting


class AdapterOfStep(Section):
    """The adapters of a step whose cost is estimated: blocks and rank."""

    layers: Text = setting(
        "all", "blocks with adapters: `all`, or the highest `top:N`", pattern=r"^(all|top:\d+)$"
    )
    rank: int = setting(16, "rank of the adapters", ge=1)

    @property
    def top(self) -> int:
        """The number of top blocks that have adapters; 0 means all."""
        return 0 if self.layers == "all" else int(self.layers.removeprefix("top:"))


class LspOfStep(Section):
    """The subspaces of LSP-Offload."""

    subspace_size: int = setting(512, "s, rows and columns of a compressed gradient", ge=1)
    nonzeros: int = setting(16, "r, nonzeros in a row of a projector", ge=1)


class OffloadOfStep(Section):
    """The schedule of a step whose optimizer runs on the host."""

    schedule: Literal["zero", "layer-wise"] = setting(
        "zero", "order of Zero-Offload's transfers and updates; LSP-Offload's is layer by layer"
    )
    checkpointing: Literal["on", "off"] = setting(
        "on", "whether the backward pass computes activations again"
    )


class ModelOfStep(Section):
    """The storage of the model's blocks during a step."""

    stream: Literal["off", "auto", "host", "disk"] = setting(
        "off",
        "`host` and `disk` stream the blocks in every step, from the host's memory or from disk; "
        "`auto` streams them only if they do not fit in the device's memory",
    )


class StepSettings(Settings):
    """Settings of a step that the command has no options for, named as in a run."""

    queries: int = setting(1, "q, directions of a step", ge=1)
    grouping: Literal["sequential", "inner", "outer", "both"] = setting(
        "both", "assignment of perturbations to forward passes"
    )
    differences: Literal["central", "forward"] = setting(
        "central", "`central` needs 2·q losses per step, `forward` q + 1"
    )
    supervised: int = setting(0, "supervised positions of an example; 0: all positions", ge=0)
    readout_labels: int = setting(
        0, "labels of a readout on `--batch` cached examples; 0: adapters inside the model", ge=0
    )
    in_place: bool | Literal["auto"] = setting(
        "auto",
        "with `--optimizer mezo`: perturb the parameters themselves, without a float32 copy; "
        "`auto` does so only in `fp32`",
    )
    adapter: AdapterOfStep = setting(AdapterOfStep(), "Adapters")
    lsp: LspOfStep = setting(LspOfStep(), "LSP-Offload")
    offload: OffloadOfStep = setting(OffloadOfStep(), "Offloading")
    model: ModelOfStep = setting(ModelOfStep(), "Model")
