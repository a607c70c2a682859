"""The round planner: which clients are asked, the instruction, and the messages that carry it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.restored_run import RestoredRun
from samara.server.rounds.health import ClientHealth
from samara.server.rounds.late_reports import report_token
from samara.server.rounds.recorded_cohorts import RecordedCohorts
from samara.server.rounds.sampling import sample_cohort
from samara.server.rounds.stray_clients import StrayClients
from samara.server.store import RunStore
from samara.server.transport.messages import make_message
from samara.server.transport.roster import Roster, RosterEntry, await_clients
from samara.shared.config import RunConfig
from samara.shared.errors import SamaraError
from samara.shared.frames.instructions import (
    GLOBAL_TRACK,
    EvaluateInstruction,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.intercept_round import intercept_instruction
from samara.shared.step_size import StepSize

Instruction = TypeVar("Instruction", TrainInstruction, EvaluateInstruction)


@dataclass(frozen=True)
class Request(Generic[Instruction]):
    """An instruction, and one message for each client that is asked to carry it out.

    Attributes:
        instruction: the instruction, the same for all clients.
        messages: the messages; each also brings its client up to the present round.
        bytes_down: by client, the size of its message.
        wanted_reports: the number of reports that end the round early; 0 if all are waited for.
    """

    instruction: Instruction
    messages: list[Message]
    bytes_down: dict[int, int]
    wanted_reports: int = 0

    @property
    def expected_reports(self) -> int:
        """The number of reports that the round waits for."""
        return self.wanted_reports or len(self.messages)

    def has_enough(self, replies: Iterable[Message]) -> bool:
        """Return whether as many replies as wanted hold a report on this instruction."""
        if not self.wanted_reports:
            return False
        token = token_of(self.instruction.encode())
        return sum(report_token(reply) == token for reply in replies) >= self.wanted_reports


class RoundPlanner:
    """Picks the cohort of a round and writes what it is asked.

    Args:
        config: settings of the run.
        store: ledger and layout of the run.
        roster: clients of the run.
        health: failures of the clients; resting ones are not asked.
        cohorts: cohorts of a recorded run, to be asked instead of sampled ones.
    """

    def __init__(
        self,
        config: RunConfig,
        store: RunStore,
        roster: Roster,
        health: ClientHealth,
        cohorts: RecordedCohorts | None,
    ) -> None:
        self._config, self._store, self._roster = config, store, roster
        self._health, self._cohorts = health, cohorts
        self._strays = StrayClients(RestoredRun.read(store.folder))

    @property
    def minimum(self) -> int:
        """The fewest reports that change the model: `cohort.minimum`, or all of a smaller cluster.

        A cluster would otherwise wait for clients that it does not have.
        """
        minimum, most = self._config.cohort.minimum, self._roster.most_clients
        return minimum if most is None else min(minimum, most)

    def plan_round(
        self, grid: Grid, step_size: StepSize, joint_clip: float = 0.0
    ) -> Request[TrainInstruction]:
        """Return the next round's instruction and its messages to the cohort.

        Waits for as many clients as a round needs, for at most `cohort.timeout`.

        Args:
            grid: the grid that knows which nodes are connected.
            step_size: step size of the run so far.
            joint_clip: adaptive clip of the round; 0 without one.

        Raises:
            SamaraError: if a client of the recorded cohort is not connected.
        """
        number = self._store.ledger.position.round + 1
        connected = await_clients(
            self._roster,
            grid,
            min(self.minimum, self._config.data.clients),
            self._config.cohort.timeout,
        )
        cohort, wanted_reports = self._choose_cohort(number, connected)
        instruction = self._train_instruction(number, step_size, joint_clip)
        entries = [connected[client] for client in cohort]
        messages, bytes_down = self._address(instruction.encode(), MessageType.TRAIN, entries)
        return Request(instruction, messages, bytes_down, wanted_reports)

    def plan_intercepts(self, grid: Grid, joint_clip: float = 0.0) -> Request[TrainInstruction]:
        """Return the instruction of the round of intercepts, for all clients that train.

        Args:
            grid: the grid that knows which nodes are connected.
            joint_clip: adaptive clip of the round; 0 without one.
        """
        ledger, layout = self._store.ledger, self._store.layout
        bias = layout.label_bias
        assert bias is not None, "the method readout has a label bias"
        instruction = intercept_instruction(
            self._config.terms,
            *(ledger.header.run_id, layout.hash, ledger.digest),
            labels=bias.stop - bias.start,
            joint_clip=joint_clip,
        )
        connected = self._roster.entries_of(grid.get_node_ids())
        if self._cohorts:
            clients = self._cohorts.clients_of(instruction.round)
        else:
            clients = [client for client in connected if client not in self._config.newcomers]
        entries = [connected[client] for client in clients]
        return Request(
            instruction, *self._address(instruction.encode(), MessageType.TRAIN, entries)
        )

    def plan_evaluation(
        self, grid: Grid, split: Split, action: str = ""
    ) -> Request[EvaluateInstruction]:
        """Return the instruction to evaluate the present state, for all connected clients.

        Args:
            grid: the grid that knows which nodes are connected.
            split: the split that each client evaluates on.
            action: the message's action; empty for the global model, `PERSONAL_ACTION` for the
                comparison of personal models.
        """
        ledger, layout = self._store.ledger, self._store.layout
        instruction = EvaluateInstruction(
            ledger.header.run_id,
            ledger.position.round,
            GLOBAL_TRACK,
            split,
            layout.hash,
            ledger.digest,
        )
        connected = self._roster.entries_of(grid.get_node_ids())
        message_type = f"{MessageType.EVALUATE}.{action}" if action else MessageType.EVALUATE
        frame = instruction.encode()
        return Request(instruction, *self._address(frame, message_type, connected.values()))

    def _choose_cohort(
        self, number: int, connected: dict[int, RosterEntry]
    ) -> tuple[list[int], int]:
        """Return the clients to ask, ascending, and how many reports suffice (0: all)."""
        if self._cohorts:
            recorded = self._cohorts.clients_of(number)
            if missing := [client for client in recorded if client not in connected]:
                raise SamaraError(f"the recorded run has clients that this one lacks: {missing}")
            return recorded, 0
        config, settings = self._config, self._config.cohort
        training = [client for client in connected if client not in config.newcomers]
        awake = [client for client in training if not self._health.is_resting(client, number)]
        if len(awake) < self.minimum:
            awake = training
        wanted = sample_cohort(config.seed, number, awake, settings.fraction, self.minimum)
        size = math.ceil(round(settings.oversample * len(wanted), 9))
        cohort = sample_cohort(
            config.seed, number, awake, settings.fraction, max(self.minimum, size)
        )
        return cohort, len(wanted)

    def _train_instruction(
        self, number: int, step_size: StepSize, joint_clip: float
    ) -> TrainInstruction:
        config = self._config
        return config.terms.instruction(
            self._store.ledger.header.run_id,
            number,
            self._store.layout.hash,
            self._store.ledger.digest,
            learning_rate=step_size.learning_rate,
            clip=step_size.clip,
            curvature_every=step_size.curvature_every(config.queries, config.differences),
            joint_clip=joint_clip,
        )

    def _address(
        self, frame: bytes, message_type: str, entries: Iterable[RosterEntry]
    ) -> tuple[list[Message], dict[int, int]]:
        """Return one message per client with what it has missed, and by client its bytes."""
        ledger, settings = self._store.ledger, self._config.cohort
        last_round = ledger.position.round
        seconds = settings.timeout * (1 + settings.late_rounds)
        catch_up_from = cache(ledger.catch_up)
        messages, bytes_down = [], {}
        for entry in entries:
            catch_up = catch_up_from(self._strays.round_to_send_from(entry, last_round))
            bytes_down[entry.client] = len(frame) + len(catch_up)
            group = str(last_round + 1)
            messages.append(make_message(entry.node, message_type, group, frame, catch_up, seconds))
        return messages, bytes_down
