"""The settings of a tuning run, each valid by itself, and values derived from them."""

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
    """Everything that determines a tuning run; 0 and auto mean the method's defaults."""

    fixed: ClassVar = {"trunk-cache": Fixed(TRUNK_CACHE_BYTES)}

    optimizer: Optimizer = setting(
        "prge", "how the model is trained, or the baseline that is measured", former="method"
    )
    space: SpaceName | Literal["auto"] = setting(
        "auto", "parameters that are trained; `auto` is the optimizer's first"
    )
    seed: int = SEED
    steps: int = setting(
        1000,
        "number of steps, T",
        ge=1,
        le=10_000_000,
        apart="they are all steps of the run, not those of a round",
    )
    queries: int = setting(
        0,
        "directions q of a step; 0 is 4 for `prge`, 1 for MeZO",
        read_by=ZEROTH_ORDER,
        ge=0,
        le=65_535,
        apart="one device has all the noise of a step, which the papers' numbers are for",
    )
    query_schedule: Literal["constant", "linear"] = setting(
        "constant", "`constant`, or `linear`, rising to q", read_by=ZEROTH_ORDER
    )
    batch: int = setting(
        0,
        "examples B of a step; of `prge` for all directions, of MeZO for each. 0 is 10,000 with a "
        "readout alone, otherwise 16",
        ge=0,
        apart="16 is the batch of the papers that a run on one device repeats",
    )
    micro_batch: int = setting(
        PASS_EXAMPLES,
        "most examples in one forward pass, grouped by similar length; 0 is the whole batch. A "
        "gradient is the sum of those of its passes",
        ge=0,
        apart="methods that differentiate keep what no measured pass shows",
    )
    grouping: Literal["sequential", "inner", "outer", "both"] = setting(
        "both",
        "perturbations of a step that share a forward pass",
        page="reference/settings.md",
        apart="nothing is timed, so that a run has the same bits on every machine",
    )
    epsilon: float = setting(
        0.0,
        "ε; 0 is 0.001 in `full`, 0.1 for a prefix, 0.01 for adapters",
        read_by=ZEROTH_ORDER,
        ge=0,
        le=1,
        apart="it depends on the space, of which a federation has one",
    )
    differences: Literal["central", "forward", "one-point"] = setting(
        "central",
        "`central`, 2·q losses a step; of `prge` also `forward`, q + 1; of MeZO also `one-point`, "
        "q losses, whose differences are to those of the step before",
        read_by=ZEROTH_ORDER,
        page="concepts/mezo.md#estimate-and-schedules",
        apart="MeZO's one-point estimate needs the loss of the step before, which no report has",
    )
    gradients: Gradients | Literal["forward-mode"] = setting(
        "differences",
        "`differences` of losses; of `prge` also `exact`, z·∇L of every direction from one "
        "backward pass; or `forward-mode`, the same without one, in a pass for each direction",
        read_by=ZEROTH_ORDER,
        page="concepts/steps.md#exact-derivatives",
        before="differences",
        apart="forward-mode derivatives are for the spaces that no federation has; own estimators "
        "are for federations",
    )
    learning_rate: LearningRate = setting(
        "auto",
        "η; `auto` estimates it while `prge`, `mezo` and `mezo-momentum` run, of Adam it is the "
        "table below",
        page="concepts/step-size.md",
        apart="Adam and SGD estimate no η",
    )
    learning_rate_schedule: LearningRateSchedule = setting(
        "constant",
        "`constant`, or falling to zero, `linear` or `cosine`, of an η that is a number",
        apart="an estimated η is not scheduled here, and the papers' schedules are",
    )
    warm_up: int = setting(
        0,
        "first steps, in which an η that is a number rises from zero by equal parts",
        before=0,
        ge=0,
    )
    rate_per_query: bool = setting(
        False,
        "whether η is that of a single direction: a step of n directions has n·η (MeZO, appendix "
        "A.2)",
        read_by=MEZO,
        before=False,
    )
    weight_decay: float = setting(
        0.0,
        "λ: a step also subtracts η·λ·θ, from every number that is trained",
        read_by=ZEROTH_ORDER,
        before=0.0,
        ge=0,
    )
    moments: Literal["auto", "held", "recomputed"] = setting(
        "auto",
        "whether moments are `held` in memory, or `recomputed` in every step from seeds and "
        "projected gradients, to the same bits; `auto` holds them unless all parameters are "
        "streamed",
        read_by=("mezo-momentum", "mezo-adam"),
        page="concepts/mezo.md#updates",
        identity=False,
    )
    in_place: bool | Literal["auto"] = setting(
        "auto",
        "perturb the parameters of `full` themselves, with the memory of inference, in place of a "
        "float32 copy. Every step leaves rounding errors in them; `auto` does so in float32, "
        "where they are harmless",
        read_by=MEZO,
        page="concepts/mezo.md#spaces",
        before=False,
    )
    objective: Literal[
        "auto", "cross-entropy", "profiled-cross-entropy", "likelihood", "metric"
    ] = setting(
        "auto",
        "`cross-entropy`, `likelihood`, or, in zeroth order only, `profiled-cross-entropy` "
        "([its page](../concepts/profiled-loss.md)) or `metric`; `auto` is what the task's kind is "
        "trained on",
        page="reference/tasks.md",
        apart="a likelihood is trained here, and own objectives in federations",
    )
    validate_every: int = setting(
        100,
        "steps between validations; there is one before the first step and one after the last",
        ge=1,
    )
    tested_state: Literal["best", "last"] = setting(
        "best",
        "the state that is kept and tested: the `best` on validation, or the `last`",
        before="best",
    )
    classifier: ClassifierName = setting(
        "label-words",
        "source of a classification's scores: its label words, or a linear layer on the last "
        "hidden state, trained with all parameters: `new` begins as random numbers and reads "
        "texts without the question, `linear-probe` begins as linear probing of the prompts",
        page="reference/tune.md#classifiers",
        before="label-words",
    )
    stream_compression: Literal["none", "bfloat16", "float16", "float8"] = setting(
        "none",
        "`none`, `bfloat16`, `float16` or `float8`: type that holds all parameters where they are "
        "trained and streamed",
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
        "round factors of matrix products on a CUDA device to TF32, 10 bits after the first",
        before=False,
    )
    prefix_length: int = setting(5, "tokens of a prefix", ge=1)
    prefix_start: Literal["activations", "random"] = setting(
        "activations",
        "what a prefix begins as: `activations`, keys and values of real tokens, or `random` "
        "numbers",
        page="concepts/mezo.md#spaces",
        before="activations",
    )
    prefix_width: int = setting(
        0,
        "width of the hidden layer of a network that makes the prefix; 0 trains the prefix's keys "
        "and values themselves",
        page="concepts/mezo.md#spaces",
        before=0,
        ge=0,
    )
    demonstrations: int = setting(
        32, "solved examples before every example, at most", read_by=("icl",), ge=1
    )
    task: TaskName = TASK
    form: Form = FORM
    threads: int = setting(
        0,
        "CPU threads; 0 is one per core. A run continues only with as many as it began with",
        ge=0,
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
        """The space that is trained; empty if the method trains nothing."""
        if self.space != "auto":
            return self.space
        return SPACES[self.optimizer][0] if SPACES[self.optimizer] else "none"

    @property
    def is_first_order(self) -> bool:
        """Return whether the method trains on true gradients."""
        return self.optimizer in FIRST_ORDER

    @property
    def is_in_place(self) -> bool:
        """Return whether the parameters themselves are perturbed, without a float32 copy."""
        if self.in_place != "auto":
            return self.in_place
        is_float32 = self.model.dtype == "float32" and self.stream_compression == "none"
        # No trajectory has perturbations outside of steps, so a rebuild would lack their rounding.
        of_norms = self.scaling.modify != "nothing" and self.scaling.norms == "gradients"
        of_curvature = self.gradients == "forward-mode" and self.estimates_its_rate
        is_full = self.optimizer in MEZO and self.trained_space == "full"
        return is_full and is_float32 and not (of_norms or of_curvature)

    @property
    def differentiates(self) -> bool:
        """Return whether any gradient is computed by differentiation."""
        of_norms = self.scaling.modify != "nothing" and self.scaling.norms == "backward"
        return self.is_first_order or self.gradients != "differences" or of_norms

    @property
    def features(self) -> dict[str, str]:
        """The values in the feature matrix of tuning that the settings decide."""
        return {
            "optimizer": self.optimizer,
            "space": self.trained_space,
            "adapter": adapter_kind(self.adapter.layers),
        }

    @property
    def estimates_its_rate(self) -> bool:
        """Return whether the learning rate is estimated during the run."""
        return self.learning_rate == "auto" and self.optimizer in ESTIMATING

    @property
    def rate(self) -> float:
        """The learning rate as a number."""
        assert self.learning_rate != "auto", "it is decided, or estimated while the method runs"
        return self.learning_rate

    @property
    def trains(self) -> bool:
        """Return whether the method trains the model in steps."""
        return bool(SPACES[self.optimizer])
