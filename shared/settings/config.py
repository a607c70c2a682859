"""The frozen configuration of a run, from a scenario file, ``--set`` or Flower's run config.

Keys are dotted and lower-case (``adapter.rank``, ``learning-rate``). All mistakes are reported
together. ``python docs/tables.py`` writes pyproject's ``[tool.flwr.app.config]`` and
docs/reference/settings.md from the fields.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from samara.shared.extensions import is_extension
from samara.shared.protocol.directions import Differences
from samara.shared.protocol.layout import LABEL_BIAS_GROUP
from samara.shared.settings.choices import (
    AUTO,
    COMPONENTS,
    DIFFERENCES,
    DISTRIBUTION,
    EPSILON,
    GAUSSIAN,
    LABEL_BIAS,
    OBJECTIVE,
    OPEN,
    ORTHOGONAL,
    READOUT,
    READOUT_AT_A_DEPTH,
    choose,
    with_choices,
)
from samara.shared.settings.common import (
    ADAPTER,
    FORM,
    MODEL,
    MOST_THREADS,
    OF_SIMULATIONS,
    OUT,
    PASS_EXAMPLES,
    SEED,
    TASK,
    TRUNK_CACHE_BYTES,
    TaskName,
)
from samara.shared.settings.data import DataSettings, with_drawn_split
from samara.shared.settings.features import refusals
from samara.shared.settings.fleet import FleetSettings
from samara.shared.settings.personal import PersonalSettings
from samara.shared.settings.privacy import PrivacySettings
from samara.shared.settings.rehearsal import RehearsalSettings
from samara.shared.settings.scenarios import read_scenario
from samara.shared.settings.sections import (
    EMBEDDED_MODEL,
    AdapterSettings,
    AggregationSettings,
    CohortSettings,
    EvaluateSettings,
    LearningRate,
    LedgerSettings,
    ModelSettings,
    adapter_kind,
    aggregation_kind,
)
from samara.shared.settings.setting import (
    Fixed,
    Scalar,
    Section,
    Settings,
    Text,
    choice,
    describe,
    flattened,
    nest,
    parse_assignment,
    setting,
    term,
)
from samara.shared.tasks.kinds import Form
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.objectives import CROSS_ENTROPY, OBJECTIVES
from samara.shared.terms.run_terms import RunTerms, federated_rounds, reporting_rounds

METHODS = ("finetune", "local", "global", "ditto", "mixture", "partial", "cluster", "readout")
POOL = 4096
"""Number of directions in a run's pool (FedKSeed, Qin et al., 2024)."""
TRUNK_CACHES = 8
"""Size of the cache for outputs of the layers below the adapters, as a multiple of the memory
budget."""
Method = Annotated[str, choice("personalization", METHODS)]
"""Personalization methods that are compared at the same total number of rounds
(docs/guides/personal.md).
"""
SeedPolicy = Literal["shared", "independent", "pool"]

NO_STREAMED_GRADIENTS = (
    "gradients: the backward pass of exact gradients needs all blocks at once; set model.stream to "
    "off, or gradients to differences"
)


def reads(method: str, key: str) -> bool:
    """Return whether a method uses a setting; an unknown method may use every setting."""
    described = describe(RunConfig).get(key)
    return described is None or described.is_read_by(_built_in_method(method))


def _built_in_method(method: str) -> str:
    """Return the built-in method whose rules apply to a built-in or registered method."""
    return "readout" if is_extension(method) else method


class RunConfig(Settings):
    """All settings of a run."""

    fixed: ClassVar = {
        "trunk-cache": Fixed(
            TRUNK_CACHE_BYTES, identity=False, instead="it is eight times `memory-budget`"
        )
    }

    method: Method = setting(
        "finetune",
        "how a client's model is made: `finetune`, `local`, `global`, `ditto`, `mixture`, "
        "`partial`, `cluster`, `readout`, or a registered personalization. Every method spends "
        "`rounds` + `personal.rounds` rounds on a client",
        page="guides/personal.md",
    )
    seed: int = SEED
    rounds: int = term(
        "rounds",
        "rounds of the federation. A method without private rounds adds `personal.rounds` to them; "
        "`local` makes all rounds private",
        40,
    )
    steps: int = term(
        "steps",
        "local steps K of a round. 0 means 2; with a readout alone it means 16, or 1 with "
        "components",
        0,
        least=0,
        page="concepts/step-size.md#a-readout",
    )
    queries: int = term(
        "queries",
        "directions q per step. 0 means 16; with a readout alone it means 16·(L − 1) for the L "
        "labels of `task`, at most 64, and twice that with components",
        0,
        least=0,
        page="concepts/step-size.md#a-readout",
    )
    batch: int = term(
        "batch",
        "examples B per step; all q directions are tried on the same examples. 0 means 32; with a "
        "readout alone it means 10,000, which for most clients is all examples",
        0,
        least=0,
        page="concepts/step-size.md#a-readout",
    )
    grouping: Literal["sequential", "inner", "outer", "both", "auto"] = setting(
        "both",
        "perturbations of a step that share a forward pass: `sequential`, `inner` (both signs of "
        "a query), `outer` (all queries of a sign), `both` (all), or `auto`, which times them on "
        "each device before its first step",
        owner="device",
        page="concepts/steps.md",
    )
    micro_batch: int = setting(
        PASS_EXAMPLES,
        "most examples in one forward pass; 0 is the whole batch",
        owner="device",
        retired=f"a pass has as many examples as fit `memory-budget`; where that is 0, at most "
        f"{PASS_EXAMPLES}",
        ge=0,
    )
    memory_budget: int = setting(
        0,
        "maximum memory in bytes of a forward pass, without the weights. A pass has as many "
        "examples of similar length as fit, at most `batch`. Cached outputs of the layers below "
        "the adapters may take eight times the value. With 0 a pass has at most 8 examples and on "
        "a CPU 32 MiB (or twice the memory of one example, if that is more), and cached outputs "
        "take at most 256 MiB",
        page="concepts/steps.md",
        identity=False,
        owner="device",
        ge=0,
    )
    epsilon: float = term("epsilon", "ε, the size of a perturbation", EPSILON)
    differences: Differences = setting(
        AUTO,
        "`central`: g = (L₊ − L₋)/2ε, 2·q losses per step. `forward`: g = (L₊ − L₀)/ε, q + 1 "
        "losses. `components`, only with a readout alone: the components of a client's own update "
        "along the round's q orthogonal directions. `auto` means `components` for a readout alone "
        "without privacy or settings of steps, otherwise `central`",
        page="concepts/readout.md#components",
    )
    gradients: Annotated[str, choice("estimator", ("differences", "exact"))] = setting(
        "differences",
        "source of the projected gradients: `differences` of losses; `exact`, z·∇L of every "
        "direction from one backward pass; or a registered estimator",
        owner="device",
        page="concepts/steps.md#exact-derivatives",
    )
    objective: Annotated[str, choice("objective", OBJECTIVES)] = setting(
        AUTO,
        "loss of the steps: `cross-entropy` (for texts, the mean over an answer's tokens); "
        "`summed-cross-entropy`, the sum over the tokens; `profiled-cross-entropy`, for labels, "
        "the cross-entropy under the best shift of all answers ([its "
        "page](../concepts/profiled-loss.md)); minus the task's `metric`; or a registered "
        "function. `auto` means `profiled-cross-entropy` with a label bias for tasks with labels "
        "and adapters inside the model, with the methods `global`, `finetune`, `ditto` and "
        "`mixture`, and without privacy, a basis, emulated devices or a start that lacks a label "
        "bias; otherwise `cross-entropy`",
        before=CROSS_ENTROPY,
        page="reference/python.md#own-code",
    )
    learning_rate: LearningRate = setting(
        "auto",
        "η, or `auto` to estimate it during the run",
        read_by=("global", "finetune", "ditto", "mixture", "partial", "cluster", "readout"),
        page="concepts/step-size.md",
    )
    learning_rate_schedule: Literal["auto", "constant", "linear"] = setting(
        "auto",
        "`constant`; or `linear`, which falls to 0 from the given η, or from twice the estimated "
        "η. `auto` means `linear` if η is estimated for a readout alone and there are more than "
        "three `rounds`, otherwise `constant`",
        read_by=("global", "finetune", "ditto", "mixture", "partial", "cluster", "readout"),
        before="constant",
        page="concepts/step-size.md#a-readout",
    )
    clip: float = term(
        "clip",
        "limit of projected gradients; 0 means no clipping, or four times their running scale if "
        "η is estimated",
        0.0,
    )
    seed_policy: SeedPolicy = setting(
        AUTO,
        "`independent`: every client tries different directions, for a low variance. `shared`: all "
        "clients try the same directions, so the broadcast does not grow with the cohort. `pool`: "
        f"every client tries some of the run's {POOL:,} directions, which bounds the cost of a "
        "rebuild. `auto` means `shared` with components, otherwise `independent`",
    )
    pool_size: int = term(
        "pool-size", "directions of the pool", POOL, retired=f"a pool has {POOL:,} directions"
    )
    task: TaskName = TASK
    form: Form = FORM
    threads: int = setting(
        0,
        "CPU threads of a client; 0 shares the machine's cores among the clients that train at "
        "the same time. A simulation trains as many clients in parallel as there are cores. "
        "Results are equal bit for bit only with the same number, so a continued run keeps it",
        identity=False,
        owner="device",
        ge=0,
        le=MOST_THREADS,
    )
    trunk_cache_folder: Text = setting(
        "",
        "folder that caches outputs of the layers below the adapters, in half precision, within "
        "eight times `memory-budget`; runs may share it. Empty caches them in memory, exactly",
        identity=False,
        owner="device",
    )
    out: Text = OUT
    model: ModelSettings = MODEL
    adapter: AdapterSettings = ADAPTER
    data: DataSettings = setting(DataSettings(), "Data", owner="device")
    cohort: CohortSettings = setting(CohortSettings(), "Cohort")
    aggregation: AggregationSettings = setting(AggregationSettings(), "Aggregation")
    evaluate: EvaluateSettings = setting(EvaluateSettings(), "Evaluation")
    personal: PersonalSettings = setting(
        PersonalSettings(), "Private rounds", page="guides/personal.md"
    )
    privacy: PrivacySettings = setting(
        PrivacySettings(), "Differential privacy", page="guides/differential-privacy.md"
    )
    ledger: LedgerSettings = setting(LedgerSettings(), "Ledger", page="reference/ledger.md")
    fleet: FleetSettings = setting(FleetSettings(), "Emulated devices", page="guides/fleet.md")
    rehearsal: RehearsalSettings = setting(RehearsalSettings(), "Rehearsal")

    @property
    def federated_rounds(self) -> int:
        """The number of rounds that a client trains with others.

        The total number of rounds, ``rounds`` + ``personal.rounds``, is the same for every method.
        A method without private rounds uses all of them here.
        """
        return federated_rounds(self.method, self.rounds, self.personal.rounds)

    @property
    def private_rounds(self) -> int:
        """The number of rounds that a client trains alone: the total minus `federated_rounds`."""
        return self.rounds + self.personal.rounds - self.federated_rounds

    @property
    def examples_in_pass(self) -> int:
        """The largest number of examples in a forward pass; 0 for as many as memory allows."""
        is_open = self.memory_budget and self.micro_batch == PASS_EXAMPLES
        return 0 if is_open else self.micro_batch

    @property
    def trunk_cache(self) -> int:
        """The bytes for cached outputs of the layers below the adapters."""
        return TRUNK_CACHES * self.memory_budget or TRUNK_CACHE_BYTES

    @property
    def makes_personal_models(self) -> bool:
        """Return whether every client makes and evaluates a private part after the last round."""
        return self.terms.makes_personal_models

    @property
    def terms(self) -> RunTerms:
        """The terms of the run: its demands on a client."""
        return _terms_of(self)

    @property
    def newcomers(self) -> range:
        """The simulated clients that never train the global model."""
        return range(self.data.clients - self.cohort.newcomers, self.data.clients)

    @property
    def features(self) -> dict[str, str]:
        """The run's values in the dimensions of the feature matrix that settings decide."""
        code = {"estimator": self.gradients, "objective": self.objective}
        known = {name: "registered" if is_extension(own) else own for name, own in code.items()}
        if self.fleet.devices:
            known["clients"] = "emulated"
        return known | {
            "method": _built_in_method(self.method),
            "seed-policy": self.seed_policy,
            "late reports": "counted" if self.cohort.late_rounds else "refused",
            "aggregation": aggregation_kind(self.aggregation.rule),
            "label bias": "trained" if self.adapter.label_bias else "none",
            "adapter": adapter_kind(self.adapter.layers),
            "gradients": "exact" if self.gradients == "exact" else "differences",
            "reports": "components" if self.differences == "components" else "gradients",
            "basis": "informed" if self.adapter.basis else "none",
            "split": self.data.split,
            "scalar limit": "set" if self.data.has_answer_limits else "none",
            "start": "given" if self.adapter.start else "none",
            "privacy": self.privacy.feature,
            "joint clip": "adaptive" if self.privacy.adaptive_clip else "fixed",
            "buckets": "drawn" if self.privacy.bucket else "none",
            "private rounds": "at the end" if self.personal.when == "end" else "earlier",
            "own words": "mixed" if self.personal.own_words else "none",
            "prior": self.personal.prior,
        }

    @classmethod
    def given(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate a user's settings.

        If ``out`` names a run to continue, unset `adapter.layers`, `differences`, `objective` and
        `adapter.label-bias` get the values that the run has recorded.

        Raises:
            ConfigError: as in `Settings.given`.
        """
        flat = flattened(settings)
        out = flat.get("out")
        if isinstance(out, str) and out:
            recorded = cls.recorded(Path(out))
            before = {"adapter.layers": AUTO, "differences": AUTO, OBJECTIVE: CROSS_ENTROPY}
            for key, value in (before | {LABEL_BIAS: False}).items():
                if recorded and flat.get(key, AUTO) == AUTO:
                    flat[key] = recorded.get(key, value)
        return super().given(flat, source)

    @classmethod
    def of(cls, settings: Mapping[str, Any], source: str) -> Self:
        """Validate settings, nested or dotted.

        If a start is set, an unset `adapter.layers` is that of the start. If `objective` is unset
        too, an unset `adapter.label-bias` is also that of the start.

        Args:
            settings: settings from a TOML file, ``--set`` or Flower.
            source: origin of the settings, named in the error.

        Raises:
            ConfigError: listing every mistake.
            ModelError: if such a setting is unset and the start cannot be read.
            MissingBlobError: if the start is not in this machine's store.
        """
        flat = flattened(settings)
        start = flat.get("adapter.start")
        is_open = flat.get("adapter.layers", AUTO) == AUTO
        has_bias = any(flat.get(key, AUTO) != AUTO for key in (LABEL_BIAS, OBJECTIVE))
        is_read = is_open or not has_bias
        if is_read and isinstance(start, str) and start and (is_open or Path(start).exists()):
            # imported here because most runs have no start
            from samara.shared.protocol.start import read_start

            read = read_start(start)
            if read.layout and not has_bias:
                flat[LABEL_BIAS] = bool(read.layout.group(LABEL_BIAS_GROUP))
            if is_open and read.layers:
                flat["adapter.layers"] = read.layers
            elif is_open and choose(flat)["adapter.layers"].value == READOUT_AT_A_DEPTH:
                # a start that names no layers was made for a readout after all blocks
                flat["adapter.layers"] = READOUT
        return super().of(flat, source)

    def sent(self) -> dict[str, Scalar]:
        """Return the settings that a live server sends, by dotted key.

        Clients of earlier versions refuse unknown keys. So a newer setting is left out if its value
        is the default and means the behaviour of versions without the setting.
        """
        described = describe(type(self))
        flat = self.flat()
        defaults = type(self)().flat() | {OBJECTIVE: choose(flat)[OBJECTIVE].value}
        always = OPEN.keys() - {OBJECTIVE}
        return {
            key: value
            for key, value in flat.items()
            if key not in OF_SIMULATIONS
            and (key in always or not described[key].before == defaults[key] == value)
        }

    def among(self, clients: int) -> Self:
        """Return these settings with the number of clients that Flower reports.

        Raises:
            ConfigError: if the settings do not allow this number of clients.
        """
        if clients == self.data.clients:
            return self
        return self.of(self.flat() | {"data.clients": clients}, "number of clients")

    @model_validator(mode="before")
    @classmethod
    def _choose_what_is_left_open(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        nested = {
            key: value.model_dump(by_alias=True) if isinstance(value, Section) else value
            for key, value in settings.items()
        }
        return nest(with_drawn_split(with_choices(flattened(nested))))

    @model_validator(mode="after")
    def _scalars_fit_a_frame(self) -> Self:
        if self.steps * self.queries > 2**20:
            raise ValueError("steps × queries must be at most 1,048,576")
        return self

    @model_validator(mode="after")
    def _the_features_go_together(self) -> Self:
        rounds = reporting_rounds(self.flat())
        scalars = self.steps * self.queries
        privacy = self.privacy.mistakes(rounds, self.cohort.minimum, scalars, self.evaluate.best)
        if messages := [*refusals(self.features), *privacy]:
            raise ValueError("\n".join(messages))
        return self

    @model_validator(mode="after")
    def _components_go_with_their_directions(self) -> Self:
        has_components = self.differences == "components"
        if has_components != (self.adapter.distribution == "orthogonal"):
            raise ValueError(
                "differences: components needs orthogonal directions; leave adapter.distribution "
                "out"
            )
        if has_components and self.steps != 1:
            raise ValueError(
                f"steps: a report of components covers one step, not {self.steps}; leave steps out"
            )
        return self

    @model_validator(mode="after")
    def _a_backward_pass_is_possible(self) -> Self:
        if self.gradients == "exact" and self.model.stream in ("host", "disk"):
            raise ValueError(NO_STREAMED_GRADIENTS)
        return self

    @model_validator(mode="after")
    def _the_method_has_what_it_needs(self) -> Self:
        if self.method in ("ditto", "mixture", "partial") and not self.personal.rounds:
            raise ValueError(f"method: {self.method} needs private rounds; set personal.rounds")
        if self.method == "finetune" and self.personal.when != "end" and not self.personal.rounds:
            raise ValueError(
                f"personal.when: {self.personal.when} needs personal.rounds above 0; set "
                "personal.rounds, or personal.when to end"
            )
        if self.personal.own_words and not self.makes_personal_models:
            raise ValueError(
                "personal.own-words: there is no personal model; set personal.rounds, and a method "
                "with private rounds"
            )
        names = [name.strip() for name in self.personal.part.split(",")]
        if self.method == "partial" and names == [LABEL_BIAS_GROUP] and not self.adapter.label_bias:
            raise ValueError(
                "personal.part: there is no label bias; set adapter.label-bias = true, or name "
                "other tensors"
            )
        if self.method == "cluster" and self.federated_rounds <= self.cohort.clustering_rounds:
            raise ValueError(
                "method: cluster needs more rounds than cohort.clustering-rounds, because those "
                "rounds only find the clusters"
            )
        if self.cohort.newcomers >= self.data.clients:
            raise ValueError(
                f"cohort.newcomers: at least one of {self.data.clients} clients must train; lower "
                "cohort.newcomers"
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


@lru_cache(maxsize=64)
def _terms_of(config: RunConfig) -> RunTerms:
    return RunTerms.of(config.flat())


def load_scenario(path: Path, assignments: Iterable[str] = ()) -> RunConfig:
    """Read a scenario file and the settings that override it.

    Raises:
        ConfigError: if the file cannot be read, or if settings are wrong; the error lists every
            mistake.
    """
    assigned = dict(map(parse_assignment, assignments))
    source = f"{path} with the given options" if assigned else str(path)
    return RunConfig.given(flattened(read_scenario(path)) | assigned, source)


def non_default_settings(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a scenario must contain to reproduce a run's settings.

    Automatic values are included, because a later version may choose other values.

    Args:
        flat: settings of a run by dotted key.
    """
    directions = ORTHOGONAL if flat.get(DIFFERENCES) == COMPONENTS else GAUSSIAN
    defaults = RunConfig().flat() | OPEN | {DISTRIBUTION: directions}
    return {key: value for key, value in sorted(flat.items()) if defaults.get(key) != value}
