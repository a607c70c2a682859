"""The sections of a run's settings: model, adapter, cohort, aggregation, evaluate, ledger."""

from fractions import Fraction
from math import inf
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from samara.shared.errors import ModelError
from samara.shared.protocol.directions import Distribution
from samara.shared.protocol.layout import RANDOM_TOKENS
from samara.shared.settings.setting import Fixed, Section, Text, choice, setting, term
from samara.shared.tasks.kinds import Form

EMBEDDED_MODEL = "embedded"
"""Value of ``model.path`` for the small model that comes with Samara."""


def _rate(value: object) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf:
        return float(value)
    raise PydanticCustomError("learning_rate", "Input should be auto, or a number from 0 on")


LearningRate = Annotated[float | Literal["auto"], PlainValidator(_rate)]
"""A number, or ``auto`` for a value estimated during the run
(`samara.shared.protocol.step_size`)."""


class ModelSettings(Section):
    """The frozen base model."""

    fixed: ClassVar = {
        "stream-direct": Fixed(
            False,
            identity=False,
            instead="blocks on disk are read past the page cache if memory cannot hold them",
        ),
        "stream-folder": Fixed(
            "",
            identity=False,
            instead="quantized blocks are in the cache folder, which `XDG_CACHE_HOME` moves",
        ),
    }

    path: Text = setting(
        EMBEDDED_MODEL,
        "a model folder, a name on the Hugging Face hub, a GGUF file (extra: `samara-fl[gguf]`), "
        "or `embedded` for Samara's small model of generated messages. The run id contains a hash "
        "of the model's files, not their location",
        identity=False,
    )
    family: Literal["auto", "causal", "masked", "encoder"] = setting(
        "auto",
        "`causal`, `masked`, `encoder`, or `auto` to read it from the model folder",
        retired="it follows from the model folder, from `modules.json`, or `architectures` in "
        "`config.json`",
    )
    torch_device: Text = setting(
        "cpu", "torch device, such as `cpu` or `cuda`", former="model.device"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32",
        "compute type, and the type of weights that are not quantized: `float32`, `bfloat16`, "
        "`float16`",
    )
    quantization: Literal["none", "nf4", "int8"] = setting(
        "none",
        "quantization of the blocks' linear layers: `none`, `nf4`, `int8` (weights only; token "
        "embeddings and head then have 8 bits; extra: `samara-fl[quantized]`)",
    )
    max_length: int = setting(
        128, "maximum tokens of a sequence; a longer text is cut, and the question is kept", ge=8
    )
    stream: Literal["off", "auto", "host", "disk"] = setting(
        "off",
        "storage of the blocks that are not in use: `off`, `host`, `disk`, or `auto`, which "
        "streams blocks only if the model would not fit. Does not change the results",
        identity=False,
        page="guides/streaming.md",
    )


FEWEST_CUT = 12
"""Least number of blocks of a causal LM for which `readout:auto` loads only the lower blocks."""
AT_A_DEPTH = "auto"
"""Value of a readout's depth that means a choice by the model's family and number of blocks."""
_READOUT = rf"readout(:{AT_A_DEPTH}|:[1-9]\d*(/[1-9]\d*)?)?"


class AdapterSettings(Section):
    """The adapter: the linear layers that LoRA-FA adapts, its size, and the readout.

    The seed of the frozen matrices A is independent of the run's seed. Bases, starts and phone
    programs are made for one A, so they can be used in runs with any seed.
    """

    projections: Text = setting(
        "auto",
        "names of linear layers, comma-separated. `auto` means the names that the model's "
        "`config.json` recommends as `adapter_projections`, otherwise q and v, or the fused module",
    )
    layers: Text = setting(
        "auto",
        "adapted layers: `all`, `top:2`, or indices such as `4,5`; `readout` for weights on the "
        "last representation alone; `readout:18` or `readout:2/3` for weights on the "
        "representation after the lowest 18 blocks or the lowest two thirds, without loading the "
        f"others; `readout:auto` for two thirds of a causal LM with at least {FEWEST_CUT} blocks, "
        "otherwise all blocks; or a readout and layers, such as `readout,top:1`. `auto` means the "
        "layers of the start, or without a start a default for the run",
        pattern=rf"^(auto|{_READOUT}|({_READOUT},)?(all|top:[1-9]\d*|\d+(,\d+)*))$",
        page="guides/own-model.md#what-is-trained",
    )
    damping: Text = setting(
        RANDOM_TOKENS,
        "scales of a readout's features, from the covariance of the representations of other "
        "texts: `none`, `random-tokens` for texts of random tokens, or a file written by `samara "
        "adapter damping`",
        blob=True,
        words=("none", RANDOM_TOKENS),
        page="concepts/readout.md",
        min_length=1,
    )
    rank: int = setting(2, "rank of LoRA-FA", ge=1, le=1024)
    alpha: float = setting(
        16.0, "scale of LoRA-FA: its product B·A·x is multiplied by alpha / rank", gt=0
    )
    seed: int = setting(
        0,
        "seed of the frozen matrices A",
        retired="every adapter has the same frozen matrices A",
        ge=0,
        lt=2**63,
    )
    distribution: Distribution = setting(
        "gaussian",
        "distribution of the directions",
        retired="directions are normally distributed, or orthogonal with components",
    )
    label_bias: bool = setting(
        False,
        "also train one number per label. `auto` means `true` with `method = readout`, and with a "
        "profiled `objective` whose shift a last round adds; otherwise `false`",
    )
    basis: Text = setting(
        "",
        "informed basis: a file written by `samara adapter basis` for this model, adapter and "
        "task. The adapter is then the product of the basis and a few trained numbers. Empty "
        "trains every element",
        blob=True,
        page="concepts/basis.md",
    )
    start: Text = setting(
        "",
        "initial weights of the adapter: the folder of a run of `samara tune` or of a finished "
        "federation, on the same model and adapter, or its `start.safetensors`. Empty begins with "
        "the base model",
        blob=True,
        page="guides/tune.md#the-start-of-a-federation",
    )

    @property
    def inner_layers(self) -> str:
        """The part of `layers` about layers inside the model; empty for a readout alone."""
        return self.layers.partition(",")[2] if self.has_readout else self.layers

    @property
    def has_readout(self) -> bool:
        """Return whether the adapter has a readout."""
        return self.layers.startswith("readout")

    @property
    def depth(self) -> str:
        """The number or share of blocks to load, or `auto`; empty for all blocks."""
        return self.layers.partition(",")[0].partition(":")[2] if self.has_readout else ""


class ModelAndTask(Protocol):
    """The settings needed to load a trained model, from a run or from `samara tune`."""

    @property
    def model(self) -> ModelSettings:
        """The base model."""

    @property
    def adapter(self) -> AdapterSettings:
        """The adapter."""

    @property
    def task(self) -> str:
        """The task, by its name or the path of its file."""

    @property
    def form(self) -> Form:
        """The form of prompts for a causal LM; ``auto`` for the task's own."""


def adapter_kind(layers: str) -> Literal["inner", "readout", "both"]:
    """Return the value of ``adapter.layers`` in the feature matrix's dimension ``adapter``."""
    if not layers.startswith("readout"):
        return "inner"
    return "both" if "," in layers else "readout"


def lowest_blocks(depth: str, count: int, family: str) -> int:
    """Return the number of a model's blocks to load; 0 for all.

    The meaning of ``auto`` must not change, because recorded runs contain this word. A new rule
    needs a new word.

    Args:
        depth: number of blocks, such as ``18``, or their share, such as ``2/3``. ``auto`` is two
            thirds of a causal LM with enough blocks, and all blocks of other models. Empty for all.
        count: number of blocks of the whole model.
        family: family of the model.

    Raises:
        ModelError: if the model has fewer blocks.
    """
    if depth == AT_A_DEPTH:
        depth = "2/3" if family == "causal" and count >= FEWEST_CUT else ""
    if not depth:
        return 0
    wanted = round(count * Fraction(depth)) if "/" in depth else int(depth)
    if not 1 <= wanted <= count:
        raise ModelError(
            f"adapter.layers = readout:{depth}: the model has {count} blocks; set a number from 1 "
            f"to {count}, or a share such as 2/3"
        )
    return 0 if wanted == count else wanted


MOST_ELEMENTS = 2**25
"""Largest number of trained numbers in a layout from the network.

The server allocates eight bytes per number several times.
"""


class CohortSettings(Section):
    """The clients of a round, and the weight of their reports."""

    fixed: ClassVar = {
        "most-elements": Fixed(MOST_ELEMENTS, identity=False),
    }

    fraction: float = setting(1.0, "share of the clients picked for a round", gt=0, le=1)
    available: int = setting(
        2,
        "number of clients to wait for before the first round, at most `data.clients`; later "
        "clients join the run. After `cohort.timeout`, or if a connected client is silent for 300 "
        "seconds, the run begins with a quorum",
        ge=1,
    )
    quorum: int = setting(
        0,
        "number of clients that must introduce themselves with the same layout, base model and "
        "number of clients before a run begins. They must be a majority of the clients that have "
        "introduced themselves. 0 means a majority of the clients that the server waits for, and "
        "two clients after `cohort.timeout`. A continued run needs one client of the same run",
        identity=False,
        ge=0,
    )
    layout_hash: Text = setting(
        "",
        "`layout_hash` of the run, as in `result.json`; clients with another layout are "
        "refused. Empty leaves the layout to the quorum",
        identity=False,
        pattern="^([0-9a-f]{64})?$",
    )
    model_id: Text = setting(
        "",
        "`model_id` of the base model, as in `result.json`; clients with another model are "
        "refused. Empty leaves the model to the quorum",
        identity=False,
        pattern="^([0-9a-f]{64})?$",
    )
    minimum: int = term(
        "cohort.minimum",
        "minimum number of reports; with fewer, a round changes nothing. A cluster with fewer "
        "clients needs all of them",
        1,
    )
    weight_cap: int = setting(
        10_000,
        "largest number of examples that counts as a client's weight. With any `aggregation.rule` "
        "but `mean`, the median of the cohort's numbers without the largest ones is a second limit",
        ge=1,
    )
    timeout: float = term(
        "cohort.timeout", "deadline of a round: seconds that the server waits for reports", 3600.0
    )
    oversample: float = setting(
        1.0,
        "number of clients that are asked per needed report; the round ends once enough reports "
        "have arrived",
        ge=1,
    )
    late_rounds: int = setting(
        0,
        "rounds that a report may be late. A late report has 1/√(1 + rounds late) of its weight, "
        "along the directions of its own round. 0 refuses late reports. Needs independent seeds",
        ge=0,
        le=64,
    )
    patience: int = setting(
        3,
        "consecutive failures after which a client rests",
        retired="a client rests after three failures in a row",
        ge=1,
    )
    empty_rounds: int = setting(
        10,
        "consecutive rounds without a usable report after which the run ends",
        retired="ten rounds in a row without a usable report end a run",
        ge=1,
    )
    newcomers: int = setting(
        0,
        "number of clients (the last ones) that never train the global model; they are evaluated "
        "and run private rounds",
        ge=0,
    )
    clusters: int = term(
        "cohort.clusters", "number of clusters of clients", 2, read_by=("cluster",)
    )
    clustering_rounds: int = term(
        "cohort.clustering-rounds",
        "rounds of the federation that the search for clusters replaces",
        16,
        read_by=("cluster",),
        former="cohort.grouping-rounds",
    )


AGGREGATION_RULES = (
    "mean",
    "median-norm",
    "trimmed-mean",
    "median",
    "multi-krum",
    "centered-clipping",
)


class AggregationSettings(Section):
    """The rule that turns the reports of a round into one update."""

    rule: Annotated[str, choice("aggregation", AGGREGATION_RULES)] = setting(
        "median-norm",
        "`mean` trusts every report. With `median-norm` no report weighs more, or moves the model "
        "farther, than the median report. `multi-krum` and `centered-clipping` compare reports. "
        "`trimmed-mean` and `median` apply to every projected gradient and need shared seeds. "
        "Registered rules are possible. With any rule but `mean`, losses and curvatures are "
        "trimmed means over the clients",
        before="mean",
        page="concepts/robustness.md",
    )


def aggregation_kind(rule: str) -> Literal["mean", "reports", "coordinates"]:
    """Return the value of ``aggregation.rule`` in the feature matrix."""
    if rule == "mean":
        return "mean"
    return "coordinates" if rule in ("trimmed-mean", "median") else "reports"


class EvaluateSettings(Section):
    """The rounds in which clients evaluate, in addition to the base model and the final state."""

    every: int = term(
        "evaluate.every",
        "rounds between validations; 0 means never. -1 means 1 if `evaluate.best` is `loss` with "
        "a readout alone, otherwise 10. Zero-shot and the final state are always evaluated",
        -1,
        least=-1,
        page="concepts/step-size.md#a-readout",
    )
    limit: int = setting(
        0,
        "maximum number of validation examples, and of test examples, of each simulated client, "
        "chosen by `data.seed`; 0 means all. Live clients evaluate all their examples",
        before=0,
        ge=0,
    )
    test: bool = setting(True, "evaluate on test examples too, except in `--sweep`")
    passages: int = setting(
        2,
        "for the page of `samara compare`: number of each client's test examples, and of its "
        "training examples, whose beginnings the base, global and personal models continue. "
        "0 means none. Only in simulations of texts",
        identity=False,
        ge=0,
        page="guides/language.md#what-the-models-write",
    )
    retrieved: int = term(
        "evaluate.retrieved",
        "for tasks with prompts and answers: maximum number of a client's training examples that "
        "the base model reads before each test prompt; the most similar ones are chosen (column "
        "`icl-personal`). 0 means none",
        before=0,
        page="guides/language.md#own-examples-in-context",
    )
    best: bool | Literal["auto", "loss"] = setting(
        "auto",
        "whether an extra last round returns to the best validated round. `true`: the round with "
        "the highest mean accuracy on validation examples. `loss`: the round with the lowest loss, "
        "if it is below the last round's by more than the standard error over the clients. With "
        "`readout` the personal models count, otherwise the global model. With any "
        "`aggregation.rule` but `mean`, means are trimmed. `auto` means `loss` with a readout "
        "alone if rounds are validated and the method is not `readout`, otherwise `false`",
        page="concepts/step-size.md#a-readout",
    )


class LedgerSettings(Section):
    """The storage of a run's global and personal ledgers."""

    snapshot_every: int = setting(
        1000,
        "rounds between snapshots of the state, in global and personal ledgers. Rounds before the "
        "second newest snapshot are deleted once no client needs them. 0 makes no snapshots and "
        "keeps every round",
        identity=False,
        page="reference/ledger.md",
        ge=0,
    )
