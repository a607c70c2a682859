"""The schema of result.json, which holds a finished run's result (docs/reference/result.md)."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.hello import SPLIT_EXAMPLES
from samara.shared.protocol.secure_aggregation.buckets import LEAST_TRIMMED
from samara.shared.settings.config import RunConfig
from samara.shared.settings.setting import with_current_keys
from samara.shared.tasks.messages import EMBEDDED_DATA
from samara.shared.tasks.text_split import SharedTexts

SCHEMA_VERSION = 2
"""Version of the schema. It increases when a key is removed or changes its meaning."""
RESULT_FILE = "result.json"
_SHOWN_MISTAKES = 5
_SHOWN_NAMES = 20
_SPLIT_NAMES = {"train": "training", "validation": "validation", "test": "test"}

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Ratio = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Hex = Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9 +-]{0,31}$")]
"""Name of a column. The name comes from the network, and is shown in tables and figures."""


class _ResultPart(BaseModel):
    """Base class of the result's parts. Unknown keys, which later versions write, are ignored."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())


class ClientMetrics(_ResultPart):
    """The metrics of one client, or of all clients together, on one split."""

    loss: float
    examples: Annotated[int, Field(ge=1)]
    accuracy: Share
    macro_f1: Share
    confusion: list[list[Count]]
    auc: Share | None = None
    """Area under the ROC curve, for a simulated client with two labels and examples of both."""

    @property
    def known_auc(self) -> float:
        """The AUC, or NaN if it is not known."""
        return math.nan if self.auc is None else self.auc


class Column(ClientMetrics):
    """The metrics of one evaluated model: over all examples, and per client."""

    mean_client_accuracy: Share
    mean_client_macro_f1: Share
    mean_client_auc: Share | None = None
    clients: dict[Count, ClientMetrics]


class Evaluation(_ResultPart):
    """An evaluation by all connected clients."""

    round: Count
    split: Literal["train", "validation", "test"]
    columns: dict[Name, Column]
    refused: dict[Count, str]
    bytes_up: Count
    bytes_down: Count
    catch_up_bytes: Count = 0
    """Part of ``bytes_down`` for rounds that clients had missed; 0 in older results."""
    seconds: Seconds


class RoundCost(_ResultPart):
    """The time and energy of a round on a client's device, as reported by the client."""

    seconds: Seconds
    paused: Seconds
    joules: Seconds


class ClientRound(_ResultPart):
    """A client's contribution to a round."""

    loss: float | None = None
    examples: Count = 0
    scalars: Count = 0
    bytes_up: Count
    bytes_down: Count
    cost: RoundCost | None = None


Outcome = Literal[
    "reported", "late", "dropped out", "out of memory", "out of battery", "out of reach"
]


class FleetJob(_ResultPart):
    """An emulated device's work in a round; times are in virtual seconds."""

    outcome: Outcome
    begun: Seconds
    ended: Seconds
    compute: Seconds
    transfer: Seconds
    waiting: Seconds
    joules: Seconds | None
    bytes_up: Count
    bytes_down: Count
    peak_bytes: Count
    slow: bool
    charge: Seconds


class FleetRound(_ResultPart):
    """A round on the virtual clock."""

    begun: Seconds
    ended: Seconds
    devices: dict[Count, FleetJob]


class FleetDevice(_ResultPart):
    """Time, energy and bytes of a run on an emulated device."""

    device: str
    power_mode: str
    link: str
    quantization: str
    step_seconds: Seconds
    fits: bool
    outcomes: dict[Outcome, Count]
    slow: Count
    compute_seconds: Seconds
    transfer_seconds: Seconds
    waiting_seconds: Seconds
    energy_joules: Seconds | None
    bytes_up: Count
    bytes_down: Count
    peak_memory_bytes: Count


class Fleet(_ResultPart):
    """Begin and end of a run on the virtual clock, and the run's emulated devices."""

    begun: Seconds
    ended: Seconds
    devices: dict[Count, FleetDevice]


class Round(_ResultPart):
    """A round of training."""

    round: Annotated[int, Field(ge=1)]
    loss: float | None
    reports: Count
    refused: dict[Count, str]
    problem: str
    bytes_up: Count
    bytes_down: Count
    ledger_bytes: Count
    digest: Hex
    seconds: Seconds
    clients: dict[Count, ClientRound]
    epsilon: float | None = None
    clip: float | None = None
    buckets: Count | None = None
    fleet: FleetRound | None = None


class ClientFacts(_ResultPart):
    """A client's statements about itself, which the server does not check.

    Attributes:
        examples: number of the client's training examples.
    """

    model_config = ConfigDict(extra="allow")

    examples: Count

    @property
    def facts(self) -> dict[str, Any]:
        """All statements except the number of examples."""
        return self.model_extra or {}


class ScalarRatios(_ResultPart):
    """The projected gradients that clients sent, divided by the number of trained numbers."""

    mean: Ratio
    max: Ratio
    clients: dict[Count, Ratio]


class ClientCost(NamedTuple):
    """The training cost of a run for a client.

    Attributes:
        steps: number of local steps in rounds and clustering rounds.
        private_steps: number of steps in private rounds.
        bytes_up: total size of the client's reports in bytes.
        bytes_down: total size of the client's instructions in bytes, including catch-ups.
    """

    steps: int
    private_steps: int
    bytes_up: int
    bytes_down: int


class RunResult(_ResultPart):
    """The result of a finished run; docs/reference/result.md documents its keys."""

    schema_version: Literal[2]
    config: dict[str, bool | int | float | str]
    versions: dict[str, str]
    run_id: Hex
    model_id: Hex
    layout_hash: Hex
    elements: Annotated[int, Field(ge=1)]
    clients: dict[Count, ClientFacts]
    rounds: list[Round]
    evaluations: list[Evaluation]
    bytes_up: Count
    bytes_down: Count
    wall_seconds: Seconds
    peak_memory_bytes: Count
    final_round: Count
    final_digest: Hex
    fleet: Fleet | None = None
    passes: dict[Count, Count] = {}
    """Number of rows that each client's steps ran through the model; empty if not counted."""
    automatic: dict[str, str] = {}
    """Reasons for automatically chosen settings, by dotted key."""
    no_gain: str = ""
    """Sentence for users if validation shows no gain of the global model; otherwise empty."""
    scalar_ratios: ScalarRatios | None = None
    """Scalar ratios of the clients; None in results of versions without scalar ratios."""
    groups: dict[Count, Count] = {}
    """The cluster of each client, counted from 0; empty without clusters."""
    names: dict[Count, str] = {}
    """Client names.

    A simulated client has the name of the user whose data it has. A live client has the name in its
    invitation, which only its server knows. Empty if clients have no names.
    """
    shared_texts: SharedTexts | None = None
    """Counts of test examples whose text another client trains on; None in live runs."""

    @property
    def newcomers(self) -> range:
        """The simulated clients that never trained the global model."""
        return RunConfig.of(self.config, f"result of run {self.run_id}").newcomers

    def name_of(self, client: int) -> str:
        """Return a client's name, or its number if it has no name."""
        return self.names.get(client, str(client))

    def client_of(self, name: str) -> int:
        """Return the client with this name or number. A name takes precedence over a number.

        Raises:
            SamaraError: if there is no such client.
        """
        by_name = {own: client for client, own in self.names.items()}
        if name in by_name:
            return by_name[name]
        if name.isdecimal() and int(name) in self.clients:
            return int(name)
        known = [self.name_of(client) for client in sorted(self.clients)]
        more = f" and {len(known) - _SHOWN_NAMES} more" if len(known) > _SHOWN_NAMES else ""
        raise SamaraError(
            f"there is no client {name!r}; the run has {', '.join(known[:_SHOWN_NAMES])}{more}"
        )

    def describe_split(self) -> str:
        """Return a sentence about the data split: its rule, its seed, and the clients' parts."""
        seed = self.config.get("data.seed", 0)
        rule = str(self.config.get("data.split", "random"))
        how = {"random": "at random", "time": "by time", "text": "by text"}[rule]
        if self.config.get("data.path") == EMBEDDED_DATA:
            how = "of generated messages, by text"
        drawn = "the run's seed" if seed == self.config.get("seed") else "not the run's seed"
        sentence = f"split {how}, drawn by data.seed {seed}, {drawn}"
        counts = [client.facts.get(SPLIT_EXAMPLES) for client in self.clients.values()]
        known = [own for own in counts if isinstance(own, dict)]
        if known and len(known) == len(counts):
            ranges = {
                name: [int(own.get(split, 0)) for own in known]
                for split, name in _SPLIT_NAMES.items()
            }
            sentence += "; examples of a client: " + ", ".join(
                f"{min(sizes):,} to {max(sizes):,} {name}"
                if min(sizes) < max(sizes)
                else f"{sizes[0]:,} {name}"
                for name, sizes in ranges.items()
            )
        return sentence

    def describe_shared_texts(self) -> str:
        """Return a sentence about texts that clients share, or an empty text if there are none."""
        if self.shared_texts is None:
            return ""
        return self.shared_texts.describe(str(self.config.get("data.split", "random")))

    def describe_privacy(self) -> str:
        """Return a sentence about the run's differential privacy, or an empty text without it."""
        spent = [event.epsilon for event in self.rounds if event.epsilon is not None]
        if self.config.get("privacy.mode", "none") == "none" or not spent:
            return ""
        sentence = (
            f"differential privacy, {self.config['privacy.mode']}: ε = {spent[-1]:.3g} at "
            f"δ = {self.config['privacy.delta']:g} for a client in all rounds"
        )
        is_masked = self.config.get("privacy.secure-aggregation", False)
        if is_masked:
            sentence += "; with secure aggregation the server saw only sums"
        elif self.config["privacy.mode"] == "distributed":
            sentence += "; the server saw single reports, which this ε does not cover"
        if drawn := [event.buckets for event in self.rounds if event.buckets]:
            plain = sum(count < LEAST_TRIMMED for count in drawn)
            sentence += f"; trimmed means of buckets in {len(drawn) - plain} of {len(drawn)} rounds"
            if plain:
                sentence += f", plain sums of fewer than {LEAST_TRIMMED} buckets in {plain}"
        if self.config["privacy.evaluation"] == "exact":
            sentence += "; evaluations are exact, and this ε does not cover them"
        return sentence

    def training_cost(self, client: int) -> ClientCost:
        """Return a client's training cost, without the bytes of evaluations."""
        own = [entry.clients[client] for entry in self.rounds if client in entry.clients]
        config = RunConfig.of(self.config, f"result of run {self.run_id}")
        grouping = config.cohort.clustering_rounds if config.method == "cluster" else 0
        return ClientCost(
            config.steps * (len(own) + grouping),
            config.steps * config.private_rounds,
            sum(entry.bytes_up for entry in own),
            sum(entry.bytes_down for entry in own),
        )

    @property
    def mean_passes(self) -> float | None:
        """Mean of `passes` over clients, or None if passes were not counted."""
        return sum(self.passes.values()) / len(self.passes) if self.passes else None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the result of a run.

        Raises:
            SamaraError: if the folder contains no result, or if the result is damaged or from an
                older or newer version.
        """
        file = folder / RESULT_FILE
        content = read_result(folder)
        _check_kind(content, file)
        try:
            settings = content.get("config")
            if isinstance(settings, dict):
                content |= {"config": with_current_keys(RunConfig, settings)}
            return cls.model_validate(content)
        except ValidationError as error:
            raise SamaraError(
                f"{file}: this result is damaged: {_describe_mistakes(error)}\nrun it again"
            ) from error


def read_result(folder: Path) -> dict[str, Any]:
    """Read the JSON object in a run's result file without checking its keys.

    Raises:
        SamaraError: if the file is missing, or does not hold a JSON object.
    """
    file = folder / RESULT_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except NotADirectoryError as error:
        raise SamaraError(f"{folder}: this is a file; give the folder of a run") from error
    except OSError as error:
        if not folder.exists():
            raise SamaraError(f"{folder}: does not exist; give the folder of a run") from error
        raise SamaraError(
            f"{file}: cannot be read: {error.strerror}; has the run ended? Repeat its command "
            "until it has, or give the folder of a run"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SamaraError(f"{file}: this result is damaged: {error}; run it again") from error
    if not isinstance(content, dict):
        raise SamaraError(f"{file}: this result is damaged: it is not a JSON object; run it again")
    return content


def _check_kind(content: dict[str, Any], file: Path) -> None:
    """Check that a result has this version of the schema, and belongs to a federation."""
    version = content.get("schema_version")
    if version == SCHEMA_VERSION:
        return
    if version is not None:
        raise SamaraError(
            f"{file}: its schema_version is {version!r}, but this version of Samara reads "
            f"{SCHEMA_VERSION}; use the version that wrote the file, or run it again"
        )
    if "run_id" in content and "evaluations" in content:
        raise SamaraError(
            f"{file}: this result of an older Samara has no schema_version; run it again"
        )
    kind = "of `samara tune`" if "zero_shot" in content or "metric" in content else "foreign"
    raise SamaraError(f"{file}: the file is {kind}, not the result of a federation")


def _describe_mistakes(error: ValidationError) -> str:
    mistakes = error.errors(include_url=False, include_context=False)
    lines = [
        f"{'.'.join(map(str, mistake['loc']))!r}: {mistake['msg']}"
        for mistake in mistakes[:_SHOWN_MISTAKES]
    ]
    if more := len(mistakes) - len(lines):
        lines.append(f"and {more} more")
    return "\n  ".join(["", *lines])
