"""The status of a client of this machine: its trainer, the scalars that it has sent, its passes."""

from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from client.personal.personalizations import describe_personalizations
from client.protocol.model_in_use import describe_model_in_use
from client.protocol.pass_counts import PassCounts
from client.protocol.remote_trainer import RemoteTrainer
from client.protocol.scalar_counts import ScalarCounts
from client.protocol.scenario_folder import describe_scenarios
from client.protocol.work_costs import WorkCost, WorkCosts
from devices.live.client_examples import describe_examples
from devices.live.settings import ClientSettings
from shared.errors import TrainerError

_PATIENCE_SECONDS = 2.0


class ClientStatus(NamedTuple):
    """The status of a client, for people.

    Attributes:
        activity: whether it runs, and whose model is in use, as lines.
        table: the sent scalars by generation of examples and layout.
        limit: the limit of the scalar ratio, as a sentence.
        passes: the rows that went through the model, by run.
        costs: seconds, pauses and energy, by run.
        private: the private rounds, by run.
        scenarios: what the operator has signed, and what was refused for it, as lines.
        examples: the examples by source and split.
        notes_on_examples: the newest example, and rows that are not used, as lines.
    """

    activity: str
    table: Table
    limit: str
    passes: Table
    costs: Table
    private: Table
    scenarios: str
    examples: Table
    notes_on_examples: str


def read_status(folder: Path) -> ClientStatus:
    """Read the status of a client, which need not be running.

    Args:
        folder: folder of the client.

    Raises:
        SamaraError: if the folder is no client's, or its counts cannot be read.
    """
    settings = ClientSettings.read(folder)
    limit = settings.config.data.scalar_limit
    table = Table("came together", "layout", title="Scalars sent, over all runs")
    for column in ("trained numbers", "scalars", "scalar ratio"):
        table.add_column(column, justify="right")
    for examples, by_layout in ScalarCounts(folder).read().items():
        for layout, count in by_layout.items():
            figures = f"{count.size:,}", f"{count.sent:,}", f"{count.ratio:.3g}"
            table.add_row(examples[:12], layout[:12], *figures)
        if len(by_layout) > 1:
            sent = sum(count.sent for count in by_layout.values())
            ratio = sum(count.ratio for count in by_layout.values())
            table.add_row(examples[:12], "all", "", f"{sent:,}", f"{ratio:.3g}")
    passes = Table("run", title="Passes of an example through the model")
    passes.add_column("passes", justify="right")
    for run_id, rows in sorted(PassCounts(folder).read().items()):
        passes.add_row(run_id, f"{rows:,}")
    costs = Table("run", title="What the work has cost this device")
    for column in ("rounds", "seconds", "paused", "joules", "per round", "watts"):
        costs.add_column(column, justify="right")
    for run_id, cost in sorted(WorkCosts(folder).read().items()):
        costs.add_row(run_id, *_describe_cost(cost))
    private = Table("run", title="Private rounds: accuracy on this client's validation examples")
    for column in ("done", "from round", "before", "after", "under way or waiting, from round"):
        private.add_column(column, justify="right")
    for row in describe_personalizations(folder):
        private.add_row(*row)
    activity = f"{settings.name}: client {settings.client_index}, {_describe_trainer(settings)}"
    return ClientStatus(
        "\n".join(filter(None, (activity, describe_model_in_use(folder)))),
        table,
        f"data.scalar-limit = {limit:g}{'' if limit else ': no limit'} (docs/guides/privacy.md)",
        passes,
        costs,
        private,
        "\n".join(describe_scenarios(folder)),
        *describe_examples(settings),
    )


def _describe_cost(cost: WorkCost) -> tuple[str, ...]:
    energy = ("", "", "")
    if cost.joules:
        per_round = f"{cost.joules / cost.rounds:,.1f}" if cost.rounds else ""
        energy = f"{cost.joules:,.0f}", per_round, f"{cost.joules / cost.seconds:.1f}"
    return f"{cost.rounds:,}", f"{cost.seconds:,.1f}", f"{cost.paused:,.1f}", *energy


def _describe_trainer(settings: ClientSettings) -> str:
    if not settings.socket.exists():
        return "not running"
    try:
        with RemoteTrainer(str(settings.socket), {}, _PATIENCE_SECONDS) as trainer:
            status = trainer.status()
    except TrainerError:
        return "its trainer does not answer"
    paused = f", paused: {status.paused}" if status.paused else ""
    return f"running, {status.answered} messages answered{paused}"
