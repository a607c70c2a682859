"""Sections of the settings of a tuning run."""

from typing import ClassVar, Literal

from samara.client.tuning.methods import FIRST_ORDER, LSP_GAMMA, MEZO
from samara.shared.settings.setting import Fixed, Section, Text, setting
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.sampling import LOW_DATA


class TuneData(Section):
    """The examples, and the number drawn for each split."""

    path: Text = setting(
        EMBEDDED_DATA,
        "a file, a folder, a data set name on the hub, or `messages` for generated messages. The "
        "run's identity holds a hash of the examples",
        identity=False,
        apart="the identity of a run on one device holds the examples themselves, by a hash",
    )
    train: int = setting(
        LOW_DATA["train"], "training examples drawn", page="reference/tasks.md", ge=1
    )
    validation: int = setting(
        LOW_DATA["validation"], "validation examples drawn", page="reference/tasks.md", ge=1
    )
    per_label: int = setting(
        0,
        "k, training and validation examples drawn of every label; 0 draws `data.train` and "
        "`data.validation`",
        page="reference/tasks.md#small-samples",
        before=0,
        ge=0,
    )
    test: int = setting(LOW_DATA["test"], "test examples drawn", page="reference/tasks.md", ge=1)


class ScalingSettings(Section):
    """The matrix D of the variance- and expectation-modified estimates (MeZO, appendices B.3 and
    B.4).
    """

    modify: Literal["nothing", "variance", "expectation"] = setting(
        "nothing",
        "`variance`: θ is perturbed by ε·D⁻¹·z and moves along D·z (definition 6); `expectation`: "
        "it moves along z (definition 7). D has one d for every layer, the embeddings, and the "
        "head",
        read_by=MEZO,
        page="concepts/mezo.md#scaled-estimates",
        before="nothing",
    )
    norms: Literal["gradients", "parameters", "backward"] = setting(
        "gradients",
        "what d is: norms of `gradients` estimated from losses (proposition 1), of `parameters`, "
        "or of gradients by one `backward` pass, in `full`",
        read_by=MEZO,
        before="gradients",
    )
    directions: int = setting(
        1,
        "directions in each group that norms of gradients are estimated from",
        read_by=MEZO,
        before=1,
        ge=1,
        le=65_535,
    )
    every_epoch: bool = setting(
        False,
        "find d anew in every epoch, not before the first step alone",
        read_by=MEZO,
        before=False,
    )


class LspSettings(Section):
    """The subspaces of LSP-Offload."""

    fixed: ClassVar = {"gamma": Fixed(LSP_GAMMA)}

    subspace_size: int = setting(
        0,
        "s, sides of the matrix that is trained for a weight matrix; a side of the weights not "
        "longer than s stays whole. 0 is an eighth of the hidden size",
        read_by=("lsp",),
        ge=0,
    )
    nonzeros: int = setting(
        16, "r, nonzeros in every row of a projector", read_by=("lsp",), ge=1, le=1024
    )
    check_frequency: int = setting(
        1000, "steps between checks of the projectors", read_by=("lsp",), ge=1
    )
    check_examples: int = setting(
        0,
        "examples |S| whose gradient the projectors are checked on and learned from; 0 is one "
        "forward pass of a batch's. More than one pass keeps the gradients of all layers",
        read_by=("lsp",),
        ge=0,
        before=0,
    )
    threshold: float = setting(
        0.3,
        "relative bias from which on a layer's projectors are learned anew",
        read_by=("lsp",),
        gt=0,
    )
    learning_steps: int = setting(
        200,
        "most steps of learning a layer's projectors; 0 leaves them random",
        read_by=("lsp",),
        ge=0,
    )


class OffloadSettings(Section):
    """The schedule of transfers and updates, and an emulated accelerator.

    None of these settings changes a bit of the result.
    """

    fixed: ClassVar = {"host-slowdown": Fixed(1.0, identity=False)}

    schedule: Literal["auto", "layer-wise", "zero", "none"] = setting(
        "auto",
        "order of transfers and host updates: `layer-wise`, `zero` (Zero-Offload's own), or "
        "`none`, without overlap. `auto` is the method's own, and `none` where the CPU computes",
        read_by=("zero-offload", "lsp"),
        page="concepts/offloading.md#the-schedule",
        identity=False,
    )
    checkpointing: Literal["auto", "on", "off"] = setting(
        "auto",
        "whether the backward pass computes activations again instead of keeping them; `auto` "
        "does on an accelerator, real or emulated",
        read_by=FIRST_ORDER,
        identity=False,
    )
    memory: int = setting(
        0,
        "bytes of an emulated accelerator's memory; 0 is no limit",
        read_by=FIRST_ORDER,
        page="concepts/offloading.md#an-accelerator-that-need-not-be-there",
        identity=False,
        ge=0,
    )
    bandwidth: float = setting(
        0.0,
        "bytes/s each way of an emulated link between host and accelerator; 0 emulates none",
        read_by=("zero-offload", "lsp"),
        identity=False,
        ge=0,
    )
    slowdown: float = setting(
        1.0,
        "factor of an emulated accelerator's time",
        read_by=FIRST_ORDER,
        identity=False,
        ge=1,
    )

    @property
    def emulates(self) -> bool:
        """Return whether an accelerator is emulated."""
        return bool(self.memory or self.bandwidth or self.slowdown > 1)
