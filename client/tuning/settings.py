"""What a tuning run is asked to do: one frozen model, all mistakes reported at once."""

from typing import Literal, Self

from pydantic import Field, model_validator

from shared.config import (
    EMBEDDED_DATA,
    EMBEDDED_MODEL,
    AdapterSettings,
    LearningRate,
    ModelSettings,
)
from shared.directions import Differences
from shared.settings import Section, Settings, Text
from shared.tasks.sampling import LOW_DATA

Method = Literal[
    "prge",
    "mezo",
    "mezo-momentum",
    "mezo-adam",
    "fo-adam",
    "zero-shot",
    "icl",
    "linear-probe",
]
Where = Literal["lora-fa", "lora", "prefix", "full"]

SPACES: dict[Method, tuple[Where, ...]] = {
    "prge": ("lora-fa",),
    "mezo": ("full", "lora", "lora-fa", "prefix"),
    "mezo-momentum": ("full", "lora", "lora-fa", "prefix"),
    "mezo-adam": ("full", "lora", "lora-fa", "prefix"),
    "fo-adam": ("lora-fa", "full"),
    "zero-shot": (),
    "icl": (),
    "linear-probe": (),
}
"""Where each method can train, its own place first; nowhere if it does not train the model."""

_FOUND: tuple[Method, ...] = ("prge", "mezo", "mezo-momentum")
"""Methods whose learning rate is found while they run; that of Adam is the space's own."""
_QUERIES: dict[Method, int] = {"prge": 4}
_EPSILON: dict[Where, float] = {"full": 1e-3, "lora": 1e-2, "lora-fa": 1e-2, "prefix": 1e-1}
_ADAM_RATE: dict[Where, float] = {"full": 1e-5, "lora": 5e-4, "lora-fa": 1e-2, "prefix": 1e-2}


class TuneData(Section):
    """Where the examples come from, and how many of each split are drawn."""

    path: Text = Field(
        EMBEDDED_DATA, description="file, folder, data set on the Hugging Face hub, or messages"
    )
    train: int = Field(LOW_DATA["train"], ge=1)
    validation: int = Field(LOW_DATA["validation"], ge=1)
    test: int = Field(LOW_DATA["test"], ge=1)


class TuneSettings(Settings):
    """Everything that decides what a tuning run does; 0 and auto are the method's own values."""

    method: Method = "prge"
    space: Literal["auto", "lora-fa", "lora", "prefix", "full"] = "auto"
    seed: int = Field(0, ge=0, lt=2**63, description="of the draw, the batches, the directions")
    steps: int = Field(1000, ge=1, le=10_000_000)
    queries: int = Field(0, ge=0, le=65_535, description="directions of a step; 0 is the method's")
    query_schedule: Literal["constant", "linear"] = "constant"
    batch: int = Field(16, ge=1, description="examples of a step; of each direction in MeZO")
    micro_batch: int = Field(8, ge=0, description="examples in one pass; 0 is the whole batch")
    grouping: Literal["sequential", "inner", "outer", "both"] = "both"
    epsilon: float = Field(0.0, ge=0, le=1, description="0 is the space's own")
    differences: Differences = Field(
        "central", description="of prge: forward takes q + 1 losses a step in place of 2·q"
    )
    learning_rate: LearningRate = "auto"
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    objective: Literal["auto", "cross-entropy", "likelihood", "metric"] = "auto"
    validate_every: int = Field(100, ge=1, description="steps")
    stream_compression: Literal["none", "bfloat16", "float16", "float8"] = Field(
        "none", description="of all parameters that are trained and streamed, where they wait"
    )
    prefix_length: int = Field(5, ge=1, description="tokens of a prefix")
    demonstrations: int = Field(32, ge=1, description="of in-context learning, at most")
    task: Text = Field(EMBEDDED_DATA, min_length=1, description="shipped task, or a task file")
    threads: int = Field(0, ge=0, description="CPU threads; 0 is one per core")
    trunk_cache: int = Field(
        256 * 2**20, ge=0, description="bytes for cached outputs of the layers below the adapters"
    )
    out: Text = Field("", description="folder of the run; empty is runs/<run id>")
    model: ModelSettings = ModelSettings()
    adapter: AdapterSettings = AdapterSettings()
    data: TuneData = TuneData()

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        mistakes = [*self._about_the_method(), *self._about_the_data()]
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self

    def _about_the_method(self) -> list[str]:
        mistakes = []
        method, where = self.method, SPACES[self.method]
        zeroth_order = method == "prge" or method.startswith("mezo")
        if self.space != "auto" and self.space not in where:
            if not where:
                mistakes.append(f"space: {method} trains nothing in the model; leave space out")
            else:
                able = [other for other, spaces in SPACES.items() if self.space in spaces]
                mistakes.append(
                    f"space: {method} trains in {' or '.join(where)}, not in {self.space}; "
                    f"in {self.space} train {', '.join(able)}"
                )
        if self.learning_rate_schedule != "constant" and self.finds_its_rate:
            mistakes.append(
                "learning-rate-schedule: a learning rate that is found has no schedule; leave it "
                "out, or set learning-rate to a number"
            )
        if self.differences == "forward" and method != "prge":
            mistakes.append(
                f"differences: forward ones share a loss among the queries of prge; {method} has "
                "none to share; leave it out"
            )
        if not zeroth_order:
            for name, value in (("queries", self.queries), ("epsilon", self.epsilon)):
                if value:
                    mistakes.append(
                        f"{name}: {method} tries no directions; leave it out, or choose prge "
                        "or mezo"
                    )
            if self.objective == "metric":
                mistakes.append(
                    f"objective: only zeroth-order methods can train a metric, {method} cannot; "
                    "choose prge or mezo, or another objective"
                )
        if method == "fo-adam" and self.space == "full" and self.model.dtype != "float32":
            mistakes.append(
                "model.dtype: fo-adam in the space full trains the weights as they are, for which "
                f"{self.model.dtype} is too coarse; set it to float32, or the space to lora-fa"
            )
        if method == "fo-adam" and self.model.quantization != "none":
            mistakes.append(
                "model.quantization: fo-adam needs weights that are not quantized; set it to none"
            )
        if method == "fo-adam" and self.model.stream in ("host", "disk"):
            mistakes.append(
                "model.stream: the backward pass of fo-adam needs all blocks at once; set it to off"
            )
        if self.stream_compression != "none" and (
            self.space != "full" or self.model.stream not in ("host", "disk")
        ):
            mistakes.append(
                "stream-compression: is for all parameters that wait elsewhere; set space to full "
                "and model.stream to host or disk, or leave it out"
            )
        return mistakes

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
    def finds_its_rate(self) -> bool:
        """Whether the learning rate is found while the method runs (`shared.step_size`)."""
        return self.learning_rate == "auto" and self.method in _FOUND

    @property
    def rate(self) -> float:
        """The learning rate, a number."""
        assert self.learning_rate != "auto", "it is decided, or found while the method runs"
        return self.learning_rate

    @property
    def trains(self) -> bool:
        """Whether the method takes steps in the model."""
        return bool(SPACES[self.method])

    def decided(self, threads: int) -> Self:
        """The same with every value that was left open.

        Args:
            threads: of this machine.
        """
        changes: dict[str, object] = {"threads": self.threads or threads}
        if self.method == "fo-adam" and self.model.stream == "auto":
            changes["model"] = self.model.model_copy(update={"stream": "off"})
        if self.trains:
            where = SPACES[self.method][0] if self.space == "auto" else self.space
            changes["space"] = where
            if self.learning_rate == "auto" and not self.finds_its_rate:
                changes["learning_rate"] = _ADAM_RATE[where]
            if self.method != "fo-adam":
                changes["queries"] = self.queries or _QUERIES.get(self.method, 1)
                changes["epsilon"] = self.epsilon or _EPSILON[where]
        return self.model_copy(update=changes)
