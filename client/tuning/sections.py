"""Sections of the settings of a tuning run."""

from typing import ClassVar, Literal

from samara.client.tuning.methods import FIRST_ORDER, LSP_GAMMA, MEZO
from samara.shared.settings.setting import Fixed, Section, Text, setting
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.sampling import LOW_DATA


class TuneData(Section):
    """The examples of a tuning run, and the number of examples drawn for each split."""

    path: Text = setting(
        EMBEDDED_DATA,
        "a file, a folder, a data set name on the hub, or `messages` for generated messages. The "
        "run's identity holds a hash of the examples",
        identity=False,
        apart="the identity of a run on one device contains a hash of the examples",
    )
    train: int = setting(
        LOW_DATA["train"], "training examples drawn", page="reference/tasks.md", ge=1
    )
    validation: int = setting(
        LOW_DATA["validation"], "validation examples drawn", page="reference/tasks.md", ge=1
    )
    per_label: int = setting(
        0,
        "number k of training examples, and of validation examples, drawn for each label; 0 draws "
        "`data.train` and `data.validation` examples",
        page="reference/tasks.md#small-samples",
        before=0,
        ge=0,
    )
    test: int = setting(LOW_DATA["test"], "test examples drawn", page="reference/tasks.md", ge=1)


class ScalingSettings(Section):
    """The diagonal matrix D of MeZO's variance- and expectation-modified estimates.

    See MeZO, appendices B.3 and B.4.
    """

    modify: Literal["nothing", "variance", "expectation"] = setting(
        "nothing",
        "`variance`: θ is perturbed by ε·D⁻¹·z and moves along D·z (definition 6); `expectation`: "
        "θ moves along z (definition 7). D has one d for every layer, the embeddings, and the "
        "head",
        read_by=MEZO,
        page="concepts/mezo.md#scaled-estimates",
        before="nothing",
    )
    norms: Literal["gradients", "parameters", "backward"] = setting(
        "gradients",
        "source of d: `gradients`, norms of gradients estimated from losses (proposition 1); "
        "`parameters`, norms of parameters; or `backward`, norms of gradients from one backward "
        "pass, in `full`",
        read_by=MEZO,
        before="gradients",
    )
    directions: int = setting(
        1,
        "number of directions for the estimate of each group's gradient norm",
        read_by=MEZO,
        before=1,
        ge=1,
        le=65_535,
    )
    every_epoch: bool = setting(
        False,
        "whether d is computed again in every epoch, instead of only before the first step",
        read_by=MEZO,
        before=False,
    )


class LspSettings(Section):
    """The subspaces of LSP-Offload."""

    fixed: ClassVar = {"gamma": Fixed(LSP_GAMMA)}

    subspace_size: int = setting(
        0,
        "size s of the s × s matrix that is trained in place of a weight matrix; a side of length "
        "s or less is not reduced. 0 means an eighth of the hidden size",
        read_by=("lsp",),
        ge=0,
    )
    nonzeros: int = setting(
        16, "number r of nonzeros in each row of a projector", read_by=("lsp",), ge=1, le=1024
    )
    check_frequency: int = setting(
        1000, "number of steps between checks of the projectors", read_by=("lsp",), ge=1
    )
    check_examples: int = setting(
        0,
        "number |S| of examples whose gradient serves to check and learn the projectors; 0 means "
        "as many as share a forward pass. If the examples need more than one pass, the gradients "
        "of all layers are kept in memory",
        read_by=("lsp",),
        ge=0,
        before=0,
    )
    threshold: float = setting(
        0.3,
        "smallest relative bias at which a layer's projectors are learned again",
        read_by=("lsp",),
        gt=0,
    )
    learning_steps: int = setting(
        200,
        "maximum number of steps for learning a layer's projectors; 0 leaves projectors random",
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
        "order of transfers and host updates: `layer-wise`, `zero` (the order of Zero-Offload), "
        "or `none`, without overlap. `auto` means the order of the method, or `none` if the CPU "
        "computes",
        read_by=("zero-offload", "lsp"),
        page="concepts/offloading.md#the-schedule",
        identity=False,
    )
    checkpointing: Literal["auto", "on", "off"] = setting(
        "auto",
        "whether the backward pass recomputes activations instead of keeping them; `auto` "
        "recomputes activations on a real or emulated accelerator",
        read_by=FIRST_ORDER,
        identity=False,
    )
    memory: int = setting(
        0,
        "memory of an emulated accelerator, in bytes; 0 means no limit",
        read_by=FIRST_ORDER,
        page="concepts/offloading.md#an-emulated-accelerator",
        identity=False,
        ge=0,
    )
    bandwidth: float = setting(
        0.0,
        "bandwidth of an emulated link between host and accelerator, in bytes/s in each "
        "direction; 0 emulates no link",
        read_by=("zero-offload", "lsp"),
        identity=False,
        ge=0,
    )
    slowdown: float = setting(
        1.0,
        "factor by which computations on an emulated accelerator take longer",
        read_by=FIRST_ORDER,
        identity=False,
        ge=1,
    )

    @property
    def emulates(self) -> bool:
        """True if an accelerator is emulated."""
        return bool(self.memory or self.bandwidth or self.slowdown > 1)
