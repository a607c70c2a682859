"""Settings of a tuning run: one frozen model, all mistakes reported at once."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from client.estimators.mezo import LearningRateSchedule
from client.tuning.methods import (
    ADAM_RATE,
    BATCH,
    EPSILON,
    ESTIMATING,
    FIRST_ORDER,
    LSP_RATE,
    QUERIES,
    SPACES,
    ZEROTH_ORDER,
    Method,
    SpaceName,
)
from client.tuning.sections import LspSettings, OffloadSettings, TuneData
from shared.choices import AUTO, INNER, READOUT, READOUT_BATCH
from shared.config import NO_STREAMED_GRADIENTS
from shared.data_settings import EMBEDDED_DATA
from shared.directions import Differences, Gradients
from shared.features import TUNING_EXCLUSIONS, refusals
from shared.sections import (
    EMBEDDED_MODEL,
    AdapterSettings,
    LearningRate,
    ModelSettings,
    adapter_kind,
)
from shared.settings import Scalar, Settings, Text, describe, flattened, nest, setting
from shared.tasks.catalog import TaskName


class TuneSettings(Settings):
    """Everything that decides what a tuning run does; 0 and auto are the method's own values."""

    method: Method = setting("prge", "how the model is trained, or the baseline that is measured")
    space: Literal["auto", "lora-fa", "lora", "prefix", "full", "linear"] = setting(
        "auto", "parameters that are trained; `auto` is the method's first"
    )
    seed: int = setting(
        0,
        "seed of the draw, the batches, the directions, the tokens of a prefix",
        ge=0,
        lt=2**63,
    )
    steps: int = setting(1000, "number of steps, T", ge=1, le=10_000_000)
    queries: int = setting(
        0,
        "directions q of a step; 0 is 4 for `prge`, 1 for MeZO",
        read_by=ZEROTH_ORDER,
        ge=0,
        le=65_535,
    )
    query_schedule: Literal["constant", "linear"] = setting(
        "constant", "`constant`, or `linear`, rising to q", read_by=ZEROTH_ORDER
    )
    batch: int = setting(
        0,
        "examples B of a step; of `prge` for all directions, of MeZO for each. 0 is 10,000 with a "
        "readout alone, otherwise 16",
        ge=0,
    )
    micro_batch: int = setting(
        8,
        "most examples in one forward pass; 0 is the whole batch",
        page="reference/settings.md",
        ge=0,
    )
    grouping: Literal["sequential", "inner", "outer", "both"] = setting(
        "both", "perturbations of a step that share a forward pass", page="reference/settings.md"
    )
    epsilon: float = setting(
        0.0,
        "ε; 0 is 0.001 in `full`, 0.1 for a prefix, 0.01 for adapters",
        read_by=ZEROTH_ORDER,
        ge=0,
        le=1,
    )
    differences: Differences | Literal["one-point"] = setting(
        "central",
        "`central`, 2·q losses a step; of `prge` also `forward`, q + 1; of MeZO also `one-point`, "
        "q losses, whose differences are to those of the step before",
        read_by=ZEROTH_ORDER,
        page="concepts/mezo.md#estimate-and-schedules",
    )
    gradients: Gradients = setting(
        "differences",
        "`differences` of losses, or `exact`: z·∇L of every direction from one backward pass",
        read_by=("prge",),
        page="concepts/steps.md#exact-derivatives",
    )
    learning_rate: LearningRate = setting(
        "auto",
        "η; `auto` estimates it while `prge`, `mezo` and `mezo-momentum` run, of Adam it is the "
        "table below",
        page="concepts/step-size.md",
    )
    learning_rate_schedule: LearningRateSchedule = setting(
        "constant", "`constant`, or falling to zero, `linear` or `cosine`, of an η that is a number"
    )
    warm_up: int = setting(
        0, "first steps, in which an η that is a number rises from zero by equal parts", ge=0
    )
    weight_decay: float = setting(
        0.0,
        "λ: a step also subtracts η·λ·θ, from every number that is trained",
        read_by=ZEROTH_ORDER,
        ge=0,
    )
    moments: Literal["auto", "held", "recomputed"] = setting(
        "auto",
        "whether moments are `held` in memory, or `recomputed` in every step from the seeds and "
        "projected gradients so far, without memory and to the same bits; `auto` holds them unless "
        "all parameters are streamed",
        read_by=("mezo-momentum", "mezo-adam"),
        page="concepts/mezo.md#updates",
        identity=False,
    )
    in_place: bool = setting(
        False,
        "perturb the parameters of `full` themselves, with the memory of inference, in place of a "
        "float32 copy; every step leaves rounding errors in them",
        read_by=("mezo", "mezo-momentum", "mezo-adam"),
        page="concepts/mezo.md#spaces",
    )
    objective: Literal["auto", "cross-entropy", "likelihood", "metric"] = setting(
        "auto",
        "`cross-entropy`, `likelihood`, or `metric` (zeroth order only); `auto` is what the task's "
        "kind is trained on",
        page="reference/tasks.md",
    )
    validate_every: int = setting(
        100,
        "steps between validations; there is one before the first step and one after the last",
        ge=1,
    )
    stream_compression: Literal["none", "bfloat16", "float16", "float8"] = setting(
        "none",
        "`none`, `bfloat16`, `float16` or `float8`: type that holds all parameters where they are "
        "trained and streamed",
        page="guides/streaming.md#all-parameters",
    )
    prefix_length: int = setting(5, "tokens of a prefix", ge=1)
    demonstrations: int = setting(
        32, "solved examples before every example, at most", read_by=("icl",), ge=1
    )
    task: TaskName = setting(
        EMBEDDED_DATA,
        "a shipped or registered task, or the path of a task file",
        page="reference/tasks.md",
        min_length=1,
    )
    threads: int = setting(
        0,
        "CPU threads; 0 is one per core. A run continues only with as many as it began with",
        ge=0,
    )
    trunk_cache: int = setting(
        256 * 2**20,
        "bytes for cached outputs of the layers below the adapters; 0 computes them in every "
        "forward pass",
        ge=0,
    )
    out: Text = setting("", "folder of the run; empty is `runs/<task>-<run id>`", identity=False)
    model: ModelSettings = setting(ModelSettings(), "Model")
    adapter: AdapterSettings = setting(AdapterSettings(), "Adapter")
    data: TuneData = setting(TuneData(), "Data")
    lsp: LspSettings = setting(LspSettings(), "LSP-Offload")
    offload: OffloadSettings = setting(OffloadSettings(), "Offloading")

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
        mistakes = [*self._about_the_method(), *self._about_the_data()]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self

    def _about_the_method(self) -> list[str]:
        mistakes = []
        method, where = self.method, SPACES[self.method]
        if self.space != "auto" and self.space not in where:
            if not where:
                mistakes.append(f"space: {method} trains nothing in the model; leave space out")
            else:
                able = [other for other, spaces in SPACES.items() if self.space in spaces]
                mistakes.append(
                    f"space: {method} trains in {' or '.join(where)}, not in {self.space}; "
                    f"in {self.space} train {', '.join(able)}"
                )
        mistakes += self._about_the_rate()
        mistakes += self._about_unread_settings()
        if method not in ZEROTH_ORDER and self.objective == "metric":
            mistakes.append(
                f"objective: only zeroth-order methods can train a metric, {method} cannot; "
                "choose prge or mezo, or another objective"
            )
        mistakes += [
            f"adapter.{key}: samara tune trains the adapter's own numbers from zero; leave it out"
            for key in ("basis", "start")
            if getattr(self.adapter, key)
        ]
        mistakes += self._about_perturbations()
        mistakes += self._about_gradients() if self.is_first_order else []
        mistakes += refusals(self.features, TUNING_EXCLUSIONS)
        if self.gradients == "exact" and self.model.stream in ("host", "disk"):
            mistakes.append(NO_STREAMED_GRADIENTS)
        if self.stream_compression != "none" and (
            self.space != "full" or self.model.stream not in ("host", "disk")
        ):
            mistakes.append(
                "stream-compression: is for all parameters that wait elsewhere; set space to full "
                "and model.stream to host or disk, or leave it out"
            )
        return mistakes

    def _about_the_rate(self) -> list[str]:
        mistakes = []
        if self.estimates_its_rate:
            if self.learning_rate_schedule != "constant" or self.warm_up:
                mistakes.append(
                    "learning-rate-schedule, warm-up: a learning rate that is estimated has no "
                    "schedule; leave them out, or set learning-rate to a number"
                )
            if self.differences == "one-point":
                mistakes.append(
                    "differences: one loss for every direction does not show the curvature, which "
                    "the learning rate would be estimated from; set learning-rate to a number"
                )
        if self.warm_up >= self.steps:
            mistakes.append(
                f"warm-up: {self.warm_up} of {self.steps} steps leave none with the whole learning "
                "rate; lower it, or raise steps"
            )
        return mistakes

    def _about_perturbations(self) -> list[str]:
        """Return what a zeroth-order method cannot perturb."""
        mistakes, others = [], {"prge": "one-point"}
        if self.method in ZEROTH_ORDER and self.differences == others.get(self.method, "forward"):
            mistakes.append(
                f"differences: {self.method} has no {self.differences} ones; choose central"
                + (" or forward" if self.method == "prge" else " or one-point")
            )
        if self.in_place and self._space != "full" and "full" in SPACES[self.method]:
            mistakes.append(
                f"in-place: in {self._space} the model's parameters are not perturbed; leave it "
                "out, or set space to full"
            )
        if self.in_place and self.stream_compression != "none":
            mistakes.append(
                "in-place: parameters are perturbed in the type that the model computes in; leave "
                "stream-compression out"
            )
        return mistakes

    def _about_gradients(self) -> list[str]:
        """Return what a first-order method cannot train or compute with."""
        mistakes, method, space = [], self.method, self._space
        if space != "lora-fa" and self.model.dtype != "float32":
            mistakes.append(
                f"model.dtype: {method} in the space {space} trains the weights as they are, for "
                f"which {self.model.dtype} is too coarse; set it to float32"
            )
        if self.model.quantization != "none":
            mistakes.append(
                f"model.quantization: {method} needs weights that are not quantized: updates are "
                "smaller than the steps between quantized weights, which would round them away; "
                "set it to none"
            )
        if self.model.stream in ("host", "disk"):
            mistakes.append(
                f"model.stream: the backward pass of {method} needs all blocks at once; set it to "
                "off"
            )
        if self.offload.emulates and (self.model.torch_device != "cpu" or self.threads != 1):
            mistakes.append(
                "offload: an emulated accelerator is one core of the CPU; set model.torch-device "
                "to cpu and threads to 1, or leave memory, bandwidth and the slowdowns out"
            )
        if self.offload.emulates and self.offload.schedule == "none":
            mistakes.append(
                "offload.schedule: none does all work where the model computes, and an emulated "
                "accelerator has a link and a host beside it; set it to layer-wise or zero"
            )
        return mistakes

    def _about_unread_settings(self) -> list[str]:
        flat = self.flat()
        return [
            f"{key}: {self.method} does not read it; leave it out, or choose "
            + " or ".join(described.read_by)
            for key, described in describe(type(self)).items()
            if not described.is_read_by(self.method) and flat[key] != described.default
        ]

    def _about_the_data(self) -> list[str]:
        mistakes = []
        if self.data.path != EMBEDDED_DATA:
            if self.model.path == EMBEDDED_MODEL:
                mistakes.append(
                    "model: the embedded model knows the words of generated messages only; "
                    "give a model that can read your data"
                )
            if self.task == EMBEDDED_DATA:
                mistakes.append(
                    f"task: {EMBEDDED_DATA} asks about generated messages; give a shipped task or "
                    "a task file that fits your data"
                )
        return mistakes

    @property
    def _space(self) -> SpaceName | Literal["none"]:
        """The space that is trained; none if the method trains nothing."""
        if self.space != "auto":
            return self.space
        return SPACES[self.method][0] if SPACES[self.method] else "none"

    @property
    def is_first_order(self) -> bool:
        """Return whether the method trains on true gradients, by Adam."""
        return self.method in FIRST_ORDER

    @property
    def features(self) -> dict[str, str]:
        """The values in the feature matrix of tuning that the settings decide."""
        return {
            "tuning method": self.method,
            "space": self._space,
            "adapter": adapter_kind(self.adapter.layers),
        }

    def identity(self) -> dict[str, Scalar]:
        """Return the settings that are part of a run's identity, by dotted key.

        Settings that runs from before did not have are left out where they change nothing, and
        subspaces where there are none.
        """
        identity = super().identity()
        for key in ("gradients", "warm-up", "weight-decay", "in-place"):
            if identity[key] == describe(type(self))[key].default:
                del identity[key]
        if self.method != "lsp":
            identity = {k: v for k, v in identity.items() if not k.startswith("lsp.")}
        return identity

    @property
    def estimates_its_rate(self) -> bool:
        """Return whether `shared.step_size` finds the learning rate while the method runs."""
        return self.learning_rate == "auto" and self.method in ESTIMATING

    @property
    def rate(self) -> float:
        """The learning rate as a number."""
        assert self.learning_rate != "auto", "it is decided, or estimated while the method runs"
        return self.learning_rate

    @property
    def trains(self) -> bool:
        """Return whether the method takes steps in the model."""
        return bool(SPACES[self.method])

    def complete(self, threads: int) -> Self:
        """Return the settings with a value for everything that was left open.

        Args:
            threads: number of threads of this machine.
        """
        batch = READOUT_BATCH if self.adapter.layers == READOUT else BATCH
        changes: dict[str, object] = {
            "threads": self.threads or threads,
            "batch": self.batch or batch,
        }
        if self.model.stream == "auto" and (self.is_first_order or self.gradients == "exact"):
            changes["model"] = self.model.model_copy(update={"stream": "off"})
        if self.trains:
            where = SPACES[self.method][0] if self.space == "auto" else self.space
            changes["space"] = where
            if self.learning_rate == "auto" and not self.estimates_its_rate:
                changes["learning_rate"] = LSP_RATE if self.method == "lsp" else ADAM_RATE[where]
            if not self.is_first_order:
                changes["queries"] = self.queries or QUERIES.get(self.method, 1)
                changes["epsilon"] = self.epsilon or EPSILON[where]
        return self.model_copy(update=changes)
