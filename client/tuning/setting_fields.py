"""The settings of a tuning run, each checked by itself, and values derived from them."""

from typing import ClassVar, Literal

from samara.client.estimators.mezo import LearningRateSchedule
from samara.client.tuning.methods import (
    ESTIMATING,
    FIRST_ORDER,
    MEZO,
    SPACES,
    ZEROTH_ORDER,
    ClassifierName,
    Optimizer,
    SpaceName,
)
from samara.client.tuning.sections import LspSettings, OffloadSettings, ScalingSettings, TuneData
from samara.shared.protocol.directions import Gradients
from samara.shared.settings.common import (
    ADAPTER,
    FORM,
    MODEL,
    MOST_THREADS,
    OUT,
    PASS_EXAMPLES,
    SEED,
    TASK,
    TRUNK_CACHE_BYTES,
    TaskName,
)
from samara.shared.settings.sections import (
    AdapterSettings,
    LearningRate,
    ModelSettings,
    adapter_kind,
)
from samara.shared.settings.setting import Fixed, Settings, Text, setting
from samara.shared.tasks.kinds import Form


class TuneFields(Settings):
    """The settings of a tuning run; 0 and ``auto`` mean the method's defaults."""

    fixed: ClassVar = {"trunk-cache": Fixed(TRUNK_CACHE_BYTES)}

    optimizer: Optimizer = setting(
        "prge", "the training method, or the measured baseline", former="method"
    )
    space: SpaceName | Literal["auto"] = setting(
        "auto", "the trained parameters; `auto` means the optimizer's first space"
    )
    seed: int = SEED
    steps: int = setting(
        1000,
        "number of steps, T",
        ge=1,
        le=10_000_000,
        apart="these are all steps of the run, not the steps of a round",
    )
    queries: int = setting(
        0,
        "number q of directions in a step; 0 means 4 for `prge` and 1 for MeZO",
        read_by=ZEROTH_ORDER,
        ge=0,
        le=65_535,
        apart="one device estimates a step alone, as in the papers that give the defaults",
    )
    query_schedule: Literal["constant", "linear"] = setting(
        "constant",
        "`constant`, or `linear`: the number of directions rises to q",
        read_by=ZEROTH_ORDER,
    )
    batch: int = setting(
        0,
        "number B of examples in a step: for all directions together (`prge`), or for each "
        "direction (MeZO). 0 means 10,000 with only a readout, otherwise 16",
        ge=0,
        apart="16 is the batch of the papers that a run on one device repeats",
    )
    micro_batch: int = setting(
        PASS_EXAMPLES,
        "maximum number of examples in a forward pass, grouped by similar length; 0 means the "
        "whole batch. A gradient is the sum of the gradients of its passes",
        ge=0,
        apart="a measured pass does not show the memory of methods that differentiate",
    )
    grouping: Literal["sequential", "inner", "outer", "both"] = setting(
        "both",
        "perturbations of a step that share a forward pass",
        page="reference/settings.md",
        apart="nothing is timed, so that a run has the same bits on every machine",
    )
    epsilon: float = setting(
        0.0,
        "ε; 0 means 0.001 in `full` and `head`, 0.1 for a prefix, and 0.01 for adapters",
        read_by=ZEROTH_ORDER,
        ge=0,
        le=1,
        apart="the default depends on the space, and a federation has only one space",
    )
    differences: Literal["central", "forward", "one-point"] = setting(
        "central",
        "`central`: 2·q losses per step. `forward` (only `prge`): q + 1 losses. `one-point` (only "
        "MeZO): q losses, compared with the losses of the previous step",
        read_by=ZEROTH_ORDER,
        page="concepts/mezo.md#estimate-and-schedules",
        apart="MeZO's one-point estimate needs the loss of the previous step, which no "
        "report contains",
    )
    gradients: Gradients | Literal["forward-mode"] = setting(
        "differences",
        "`differences` of losses; `exact` (only `prge`): z·∇L of all directions from one backward "
        "pass; or `forward-mode`: z·∇L without a backward pass, in one pass per direction",
        read_by=ZEROTH_ORDER,
        page="concepts/steps.md#exact-derivatives",
        before="differences",
        apart="forward-mode derivatives are for spaces that no federation has, and registered "
        "estimators are only for federations",
    )
    learning_rate: LearningRate = setting(
        "auto",
        "η; `auto` estimates η during runs of `prge`, `mezo` and `mezo-momentum`. For Adam, `auto` "
        "means the value in the table below",
        page="concepts/step-size.md",
        apart="Adam and SGD estimate no η",
    )
    learning_rate_schedule: LearningRateSchedule = setting(
        "constant",
        "schedule of a fixed η: `constant`, or `linear` or `cosine`, which fall to zero",
        apart="the papers schedule a fixed η, and an estimated η has no schedule",
    )
    warm_up: int = setting(
        0,
        "number of first steps, in which a fixed η rises linearly from zero",
        before=0,
        ge=0,
    )
    rate_per_query: bool = setting(
        False,
        "whether η is the rate of a single direction, so that a step of n directions has the rate "
        "n·η (MeZO, appendix A.2)",
        read_by=MEZO,
        before=False,
    )
    weight_decay: float = setting(
        0.0,
        "λ; each step also subtracts η·λ·θ from the trained parameters θ",
        read_by=ZEROTH_ORDER,
        before=0.0,
        ge=0,
    )
    moments: Literal["auto", "held", "recomputed"] = setting(
        "auto",
        "whether moments are `held` in memory, or `recomputed` in every step from seeds and "
        "projected gradients, with the same bits; `auto` holds moments unless all parameters are "
        "streamed",
        read_by=("mezo-momentum", "mezo-adam"),
        page="concepts/mezo.md#updates",
        identity=False,
    )
    in_place: bool | Literal["auto"] = setting(
        "auto",
        "whether steps in `full` perturb the parameters in place, with the memory of inference, "
        "instead of a float32 copy. Each step leaves rounding errors in the parameters. `auto` "
        "perturbs in place in float32, where these errors are harmless",
        read_by=MEZO,
        page="concepts/mezo.md#spaces",
        before=False,
    )
    objective: Literal[
        "auto", "cross-entropy", "profiled-cross-entropy", "likelihood", "metric"
    ] = setting(
        "auto",
        "`cross-entropy`, `likelihood`, or, only for zeroth-order methods, "
        "`profiled-cross-entropy` ([its page](../concepts/profiled-loss.md)) or `metric`; `auto` "
        "means the objective of the task's kind",
        page="reference/tasks.md",
        apart="only `samara tune` trains a likelihood, and only federations train "
        "registered objectives",
    )
    validate_every: int = setting(
        100,
        "number of steps between validations; further validations come before the first step and "
        "after the last step",
        ge=1,
    )
    tested_state: Literal["best", "last"] = setting(
        "best",
        "the state that is kept and tested: the `best` on validation, or the `last`",
        before="best",
    )
    classifier: ClassifierName = setting(
        "label-words",
        "source of a classification's scores: `label-words`, or a linear layer on the last hidden "
        "state, trained with all parameters. `new` starts from random numbers and reads texts "
        "without the question. `linear-probe` starts from linear probing of the prompts",
        page="reference/tune.md#classifiers",
        before="label-words",
    )
    stream_compression: Literal["none", "bfloat16", "float16", "float8"] = setting(
        "none",
        "type that stores the parameters if all of them are trained and streamed: `none`, "
        "`bfloat16`, `float16` or `float8`",
        page="guides/streaming.md#all-parameters",
    )
    autocast: Literal["none", "bfloat16", "float16"] = setting(
        "none",
        "`bfloat16` or, without backward passes, `float16`: training passes multiply in this type "
        "and keep the weights in float32 (mixed precision)",
        read_by=(*ZEROTH_ORDER, *FIRST_ORDER),
        before="none",
    )
    tf32: bool = setting(
        False,
        "whether a CUDA device rounds factors of matrix products to TF32, with 10 mantissa bits",
        before=False,
    )
    prefix_length: int = setting(5, "number of tokens in a prefix", ge=1)
    prefix_start: Literal["activations", "random"] = setting(
        "activations",
        "initial values of a prefix: `activations`, keys and values of real tokens, or `random` "
        "numbers",
        page="concepts/mezo.md#spaces",
        before="activations",
    )
    prefix_width: int = setting(
        0,
        "width of the hidden layer of a network that computes the prefix; 0 trains the prefix's "
        "keys and values directly",
        page="concepts/mezo.md#spaces",
        before=0,
        ge=0,
    )
    demonstrations: int = setting(
        32, "maximum number of solved examples before each example", read_by=("icl",), ge=1
    )
    task: TaskName = TASK
    form: Form = FORM
    threads: int = setting(
        0,
        "number of CPU threads; 0 means one per core. A run continues only with its initial number "
        "of threads",
        ge=0,
        le=MOST_THREADS,
        apart="no other client shares the cores",
    )
    out: Text = OUT
    model: ModelSettings = MODEL
    adapter: AdapterSettings = ADAPTER
    data: TuneData = setting(TuneData(), "Data")
    scaling: ScalingSettings = setting(ScalingSettings(), "Scaled estimates")
    lsp: LspSettings = setting(LspSettings(), "LSP-Offload")
    offload: OffloadSettings = setting(OffloadSettings(), "Offloading")

    @property
    def trained_space(self) -> SpaceName | Literal["none"]:
        """The trained space, or ``none`` if the method trains nothing."""
        if self.space != "auto":
            return self.space
        return SPACES[self.optimizer][0] if SPACES[self.optimizer] else "none"

    @property
    def is_first_order(self) -> bool:
        """True if the method trains on gradients of backward passes."""
        return self.optimizer in FIRST_ORDER

    @property
    def is_in_place(self) -> bool:
        """True if the parameters themselves are perturbed, without a float32 copy."""
        if self.in_place != "auto":
            return self.in_place
        is_float32 = self.model.dtype == "float32" and self.stream_compression == "none"
        # A trajectory records only the perturbations of steps. A rebuild would therefore lack the
        # rounding errors of other perturbations.
        of_norms = self.scaling.modify != "nothing" and self.scaling.norms == "gradients"
        of_curvature = self.gradients == "forward-mode" and self.estimates_its_rate
        is_full = self.optimizer in MEZO and self.trained_space == "full"
        return is_full and is_float32 and not (of_norms or of_curvature)

    @property
    def differentiates(self) -> bool:
        """True if any gradient is computed by differentiation."""
        of_norms = self.scaling.modify != "nothing" and self.scaling.norms == "backward"
        return self.is_first_order or self.gradients != "differences" or of_norms

    @property
    def features(self) -> dict[str, str]:
        """Values of these settings in the feature matrix of tuning."""
        return {
            "optimizer": self.optimizer,
            "space": self.trained_space,
            "adapter": adapter_kind(self.adapter.layers),
        }

    @property
    def estimates_its_rate(self) -> bool:
        """True if the learning rate is estimated during the run."""
        return self.learning_rate == "auto" and self.optimizer in ESTIMATING

    @property
    def rate(self) -> float:
        """The learning rate, which must be a number."""
        assert self.learning_rate != "auto", "it is decided, or estimated while the method runs"
        return self.learning_rate

    @property
    def trains(self) -> bool:
        """True if the method trains the model in steps."""
        return bool(SPACES[self.optimizer])
