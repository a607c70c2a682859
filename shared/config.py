"""One frozen configuration for every way to run: scenario files, ``--set`` and Flower's run config.

Keys are dotted and lower-case (``adapter.rank``, ``learning-rate``). All mistakes are reported at
once. A test holds the keys of ``[tool.flwr.app.config]`` in pyproject.toml to these fields.
"""

import json
import tomllib
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from shared.directions import Differences
from shared.errors import ConfigError
from shared.layout import LABEL_BIAS_GROUP
from shared.settings import Section, Settings, Text, flattened, parse_assignment

EMBEDDED_MODEL = "embedded"
"""The value of ``model.path`` that means the small model that comes with Samara."""
EMBEDDED_DATA = "messages"
"""The value of ``data.path`` that means generated messages, and the task that reads them."""


Method = Literal["finetune", "local", "global", "ditto", "mixture", "partial", "cluster"]
"""Ways to make a model for each client out of the same number of rounds (docs/personal.md)."""
_READ_BY: dict[str, set[Method]] = {
    "learning-rate": {"global", "finetune", "ditto", "mixture", "partial", "cluster"},
    "personal.learning-rate": {"local", "finetune", "ditto", "mixture", "partial"},
    "personal.pull": {"ditto"},
    "personal.part": {"partial"},
    "cohort.clusters": {"cluster"},
    "cohort.clustering-rounds": {"cluster"},
}


def reads(method: str, setting: str) -> bool:
    """Whether a setting means anything to a method; most do to all of them."""
    return method in _READ_BY.get(setting, {method})


def _rate(value: object) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf:
        return float(value)
    raise PydanticCustomError("learning_rate", "Input should be auto, or a number from 0 on")


LearningRate = Annotated[float | Literal["auto"], PlainValidator(_rate)]
"""A number, or to be found while a run goes on (`shared.step_size`)."""


class ModelSettings(Section):
    """The frozen base model."""

    path: Text = Field(
        EMBEDDED_MODEL, description="folder, name on the Hugging Face hub, or the embedded model"
    )
    family: Literal["auto", "causal", "masked", "encoder"] = "auto"
    torch_device: Text = Field("cpu", description="torch device, e.g. cpu or cuda")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="compute type, and the type of weights that are not quantized"
    )
    quantization: Literal["none", "nf4", "int8"] = Field(
        "none", description="of the weights in the blocks (extra: samara-fl[quantized])"
    )
    max_length: int = Field(128, ge=8, description="tokens of a sequence; longer texts are cut")
    stream: Literal["off", "auto", "host", "disk"] = Field(
        "off", description="where blocks wait that are not on the device; auto is where they fit"
    )
    stream_direct: bool = Field(False, description="read blocks past the page cache")
    stream_folder: Text = Field(
        "", description="for blocks that are made; empty is ~/.cache/samara/blocks"
    )


class AdapterSettings(Section):
    """LoRA-FA: which linear layers, and how large."""

    projections: Text = Field(
        "auto", description="comma-separated module names; auto is what the model advises, or q, v"
    )
    layers: Text = Field("top:1", pattern=r"^(all|top:[1-9]\d*|\d+(,\d+)*)$")
    rank: int = Field(2, ge=1, le=1024)
    alpha: float = Field(16.0, gt=0)
    seed: int = Field(0, ge=0, lt=2**63)
    distribution: Literal["gaussian", "rademacher"] = "gaussian"
    label_bias: bool = False


class DataSettings(Section):
    """Where the examples come from and how they are dealt to clients."""

    path: Text = Field(
        EMBEDDED_DATA, description="file, folder, data set on the Hugging Face hub, or messages"
    )
    partition: Literal["iid", "dirichlet", "user"] = "user"
    clients: int = Field(8, ge=1, le=100_000)
    alpha: float = Field(0.5, gt=0, description="of the Dirichlet partition")
    limit: int = Field(0, ge=0, description="most training examples in all; 0 is all")
    seed: int = Field(0, ge=0, lt=2**63, description="of splits, limit and partition")


class CohortSettings(Section):
    """Who takes part in a round, and how much a report weighs."""

    fraction: float = Field(1.0, gt=0, le=1)
    available: int = Field(
        2, ge=1, description="devices to wait for before the first round; all if there are fewer"
    )
    minimum: int = Field(1, ge=1, description="reports below which a round changes nothing")
    weight_cap: int = Field(
        10_000, ge=1, description="examples beyond which a client gains no weight"
    )
    timeout: float = Field(3600.0, gt=0, description="seconds the server waits for reports")
    oversample: float = Field(
        1.0, ge=1, description="ask so many times the devices that a round waits for"
    )
    late_rounds: int = Field(
        0, ge=0, le=64, description="rounds that a report may be late; 0 refuses every late one"
    )
    patience: int = Field(3, ge=1, description="failures in a row after which a device rests")
    empty_rounds: int = Field(
        10, ge=1, description="rounds in a row without a usable report that end the run"
    )
    newcomers: int = Field(
        0, ge=0, description="the last so many clients never train the global model"
    )
    clusters: int = Field(2, ge=2, le=64, description="groups of clients, of method cluster")
    clustering_rounds: int = Field(
        16, ge=1, description="rounds of the budget that find these groups, before the first"
    )


class PersonalSettings(Section):
    """The private steps that every client takes after the last round; nothing of them leaves it."""

    rounds: int = Field(5, ge=0, le=1_000_000, description="private rounds; 0 is no personal model")
    learning_rate: LearningRate = "auto"
    pull: float = Field(
        0.0625,
        gt=0,
        le=0.5,
        description="share of the way back to the global model after a private round, of ditto",
    )
    part: Text = Field(
        LABEL_BIAS_GROUP, min_length=1, description="private tensors or groups, of method partial"
    )


class EvaluateSettings(Section):
    """When clients evaluate; zero-shot and the final state are always evaluated on both splits."""

    every: int = Field(10, ge=0, description="rounds between validations; 0 is never")
    test: bool = Field(True, description="also on test examples; a sweep leaves them alone")
    best: bool = Field(
        False, description="return to the round that was best on validation before private rounds"
    )


class LedgerSettings(Section):
    """How the ledgers of a run are kept, the global and the personal ones."""

    snapshot_every: int = Field(
        1000, ge=0, description="rounds between snapshots; 0 is none, and all rounds are kept"
    )


Hours = Annotated[tuple[float, float], Field(strict=False)]
"""From and to; to may be past midnight."""
Windows = Annotated[tuple[Hours, ...], Field(strict=False)]


def check_hours(name: str, windows: Iterable[Hours]) -> None:
    """Refuse what are no hours of a day.

    Raises:
        ValueError: naming the setting and the window.
    """
    for begin, end in windows:
        if not (0 <= begin < 24 and begin + 1 / 60 <= end <= begin + 24):
            raise ValueError(
                f"{name}: [{begin:g}, {end:g}]: begin in 0 to 24 and end a minute to a day later"
            )


class DeviceGroup(Section):
    """Emulated devices of one kind."""

    device: Text = Field(min_length=1, description="a device profile: its name, or a file")
    share: float = Field(gt=0, description="of the clients, relative to the other groups")
    link: Text = Field("ethernet", min_length=1, description="a link profile: its name, or a file")
    quantization: Literal["fp32", "fp16", "int8", "nf4"] = Field(
        "fp32", description="of the weights; int8 and nf4 are really computed with"
    )
    power: Text = Field("", description="power mode of the device; empty is its profile's")
    available: Windows = Field((), description="hours of the day; empty is the link's")
    dropout: float = Field(0.0, ge=0, le=1, description="chance to fail silently in a round")
    slow: float = Field(0.0, ge=0, le=1, description="chance to be slow in a round")
    slowdown: float = Field(3.0, ge=1, description="how much longer a step then takes")
    battery: float = Field(0.0, ge=0, description="Wh; 0 is on mains")
    charging: Windows = Field((), description="hours of the day at a charger")
    charger: float = Field(10.0, ge=0, description="watts")
    use: float = Field(0.5, ge=0, description="watts that its owner takes on the average")
    reserve: float = Field(0.3, ge=0, lt=1, description="share of the battery left to the owner")

    @model_validator(mode="after")
    def _hours_are_hours(self) -> Self:
        check_hours("available", self.available)
        check_hours("charging", self.charging)
        return self


def _tables(value: object) -> object:
    """``--set`` and Flower's run config know no tables: there they are JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else []
    except ValueError as error:
        raise PydanticCustomError(
            "tables", "Input should be tables, or a JSON list of objects: {why}", {"why": error}
        ) from error


class FleetSettings(Section):
    """Emulated devices in place of clients that are as fast as this machine."""

    devices: Annotated[tuple[DeviceGroup, ...], Field(strict=False), BeforeValidator(_tables)] = (
        Field((), description="groups, each a table; none is no emulation")
    )
    begins: float = Field(12.0, ge=0, lt=24, description="hour of the day when the run begins")
    every: float = Field(
        0.0, ge=0, description="virtual seconds between the beginnings of rounds, at least"
    )
    timed_as: Text = Field(
        "", description="model whose times and memory the devices have; empty is the run's own"
    )
    rows: int = Field(512, ge=0, description="rows of several clients that share a pass; 0 is none")

    @field_serializer("devices")
    def _as_text(self, devices: tuple[DeviceGroup, ...]) -> str:
        tables = [group.model_dump(by_alias=True, exclude_unset=True) for group in devices]
        return json.dumps(tables) if tables else ""


class RunConfig(Settings):
    """Everything that decides what a run does."""

    method: Method = Field("finetune", description="how global and private rounds make a model")
    seed: int = Field(0, ge=0, lt=2**63)
    rounds: int = Field(40, ge=1, le=1_000_000)
    steps: int = Field(2, ge=1, le=65_535, description="local steps K of a round")
    queries: int = Field(16, ge=1, le=65_535, description="directions q per step")
    batch: int = Field(32, ge=1, description="examples B per step")
    grouping: Literal["sequential", "inner", "outer", "both", "auto"] = Field(
        "both", description="which points share a pass; auto times them on each device"
    )
    micro_batch: int = Field(8, ge=0, description="most examples in one pass; 0 is the whole batch")
    memory_budget: int = Field(
        0, ge=0, description="bytes that a pass may take beside the weights; 0 is no limit"
    )
    epsilon: float = Field(0.01, gt=0, le=1)
    differences: Differences = Field(
        "central", description="forward takes q + 1 losses a step in place of 2·q"
    )
    learning_rate: LearningRate = "auto"
    clip: float = Field(0.0, ge=0, description="largest |projected gradient|; 0 is no clipping")
    seed_policy: Literal["shared", "independent", "pool"] = "independent"
    pool_size: int = Field(4096, ge=1, le=2**20, description="seeds of the run's pool")
    task: Text = Field(EMBEDDED_DATA, min_length=1, description="shipped task, or a task file")
    threads: int = Field(
        0,
        ge=0,
        description="CPU threads of a client; 0 shares the cores among those that train together",
    )
    trunk_cache: int = Field(
        256 * 2**20, ge=0, description="bytes for cached outputs of the layers below the adapters"
    )
    trunk_cache_folder: Text = Field(
        "", description="keep them here, in half precision; empty is in memory, exactly"
    )
    out: Text = Field("", description="folder of the run; empty is runs/<run id>")
    model: ModelSettings = ModelSettings()
    adapter: AdapterSettings = AdapterSettings()
    data: DataSettings = DataSettings()
    cohort: CohortSettings = CohortSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    personal: PersonalSettings = PersonalSettings()
    ledger: LedgerSettings = LedgerSettings()
    fleet: FleetSettings = FleetSettings()

    @property
    def federated_rounds(self) -> int:
        """Rounds that a client trains with others; all the budget of methods without private ones.

        The budget, ``rounds`` + ``personal.rounds``, is the same for every method.
        """
        match self.method:
            case "local":
                return 0
            case "global" | "cluster":
                return self.rounds + self.personal.rounds
        return self.rounds

    @property
    def private_rounds(self) -> int:
        """Rounds that a client trains alone; the rest of the budget."""
        return self.rounds + self.personal.rounds - self.federated_rounds

    @property
    def newcomers(self) -> range:
        """The clients that never train the global model; a device with data of its own is none."""
        return range(self.data.clients - self.cohort.newcomers, self.data.clients)

    def among(self, clients: int) -> Self:
        """The same run with its data dealt among so many clients: Flower says how many there are.

        Raises:
            ConfigError: if it cannot be that many.
        """
        return self.of(self.flat() | {"data.clients": clients}, "number of clients")

    @model_validator(mode="after")
    def _scalars_fit_a_frame(self) -> Self:
        if self.steps * self.queries > 2**20:
            raise ValueError("steps × queries must be at most 1,048,576")
        return self

    @model_validator(mode="after")
    def _late_reports_have_their_own_directions(self) -> Self:
        if self.cohort.late_rounds and self.seed_policy != "independent":
            raise ValueError('cohort.late-rounds needs seed-policy = "independent"')
        return self

    @model_validator(mode="after")
    def _the_method_has_what_it_needs(self) -> Self:
        if self.method in ("ditto", "mixture", "partial") and not self.personal.rounds:
            raise ValueError(f"method: {self.method} needs private rounds; set personal.rounds")
        names = [name.strip() for name in self.personal.part.split(",")]
        if self.method == "partial" and names == [LABEL_BIAS_GROUP] and not self.adapter.label_bias:
            raise ValueError(
                "personal.part: there is no label bias; set adapter.label-bias = true, or name "
                "other tensors"
            )
        if self.method == "cluster" and self.fleet.devices:
            raise ValueError(
                "method: emulated devices share one state, which clusters do not; leave "
                "fleet.devices out, or choose another method"
            )
        if self.method == "cluster" and self.federated_rounds <= self.cohort.clustering_rounds:
            raise ValueError(
                "method: cluster needs more rounds than cohort.clustering-rounds, which find groups"
            )
        if self.cohort.newcomers >= self.data.clients:
            raise ValueError(
                f"cohort.newcomers: of {self.data.clients} clients at least one must train"
            )
        return self

    @model_validator(mode="after")
    def _the_embedded_goes_together(self) -> Self:
        if self.data.path != EMBEDDED_DATA:
            if self.model.path == EMBEDDED_MODEL:
                raise ValueError(
                    "model.path: the embedded model knows the words of generated messages only; "
                    "set model.path to a model that can read your data"
                )
            if self.task == EMBEDDED_DATA:
                raise ValueError(
                    f"task: {EMBEDDED_DATA} asks about generated messages; set task to a shipped "
                    "task or a task file that fits your data"
                )
        return self


def load_scenario(path: Path, assignments: Iterable[str] = ()) -> RunConfig:
    """Read a scenario file and the settings that override it.

    Raises:
        ConfigError: if it cannot be read, or listing every mistake.
    """
    try:
        settings = flattened(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: the scenario cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    settings |= dict(parse_assignment(assignment) for assignment in assignments)
    return RunConfig.of(settings, str(path))
