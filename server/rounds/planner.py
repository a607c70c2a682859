"""The round planner, which selects the clients of a round and writes their messages."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from samara.server.restored_run import RestoredRun
from samara.server.rounds.cohort_sampling import read_cohort_secret, sample_cohort
from samara.server.rounds.recorded_cohorts import RecordedCohorts
from samara.server.store import RunStore
from samara.server.transport.messages import make_message, report_token
from samara.server.transport.roster import Roster, RosterEntry, await_clients
from samara.shared.errors import SamaraError
from samara.shared.protocol.frames.instructions import (
    GLOBAL_TRACK,
    EvaluateInstruction,
    Split,
    TrainInstruction,
    token_of,
)
from samara.shared.protocol.step_size import StepSize
from samara.shared.settings.config import RunConfig
from samara.shared.terms.intercept_round import intercept_instruction

Instruction = TypeVar("Instruction", TrainInstruction, EvaluateInstruction)

log = logging.getLogger("samara.server")

_MOST_RESTING_ROUNDS = 64
_TWO_SERVERS = (
    "another server continues this run, or this folder is an older copy of the run; end one of the "
    "servers, or restore the newest backup (docs/guides/moving.md)"
)
_MORE_REACHED = (
    "the client is beyond round {}, the value of --reached in `samara server restore`. If the "
    "client is right, more privacy was spent than is counted: restore again with a larger --reached"
)


@dataclass(frozen=True)
class Request(Generic[Instruction]):
    """An instruction, and the message that carries it to each selected client.

    Attributes:
        instruction: the instruction, the same for all clients.
        messages: the messages; each also contains the ledger records that its client lacks.
        bytes_down: size of each client's message, by client.
        wanted_reports: number of reports after which the round ends early; 0 waits for all reports.
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
        """Return whether the replies hold enough reports for this instruction to end the round."""
        if not self.wanted_reports:
            return False
        token = token_of(self.instruction.encode())
        return sum(report_token(reply) == token for reply in replies) >= self.wanted_reports


@dataclass
class _Record:
    failures: int = 0
    last_resting_round: int = 0


class ClientHealth:
    """A counter of each client's consecutive failures, which decides when the client rests.

    A client that rests is not selected. A client first rests for one round. Each further failure
    doubles this number of rounds, up to 64 rounds.

    Args:
        patience: number of consecutive failures after which a client first rests.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._records: dict[int, _Record] = {}

    def record_failure(self, client: int, round_number: int) -> int:
        """Count a failure, and return the number of rounds for which the client rests."""
        record = self._records.setdefault(client, _Record())
        record.failures += 1
        beyond = record.failures - self._patience
        rounds = min(2**beyond, _MOST_RESTING_ROUNDS) if beyond >= 0 else 0
        record.last_resting_round = round_number + rounds
        return rounds

    def record_success(self, client: int) -> None:
        """Reset a client's number of failures to zero."""
        self._records.pop(client, None)

    def is_resting(self, client: int, round_number: int) -> bool:
        """Return whether a client rests in a round."""
        record = self._records.get(client)
        return record is not None and round_number <= record.last_resting_round

    def resting_clients(self, round_number: int) -> list[int]:
        """Return the clients that rest in a round, ascending."""
        return sorted(client for client in self._records if self.is_resting(client, round_number))


class StrayClients:
    """Tracks clients that have followed a different ledger of the same run.

    A server that was restored from a backup lacks the rounds after the backup, which its clients
    may have. These clients start again from the restored server's ledger. If this server was not
    restored, or if the client has already followed this server's ledger, a second server must have
    written the different ledger. The planner then logs a warning.

    Args:
        restored: backup that the run was restored from; None if it was not restored.
    """

    def __init__(self, restored: RestoredRun | None) -> None:
        self._restored = restored if restored and not restored.moved else None
        self._followers: set[int] = set()
        self._warned: set[int] = set()

    def round_to_send_from(self, entry: RosterEntry, last_round: int) -> int:
        """Return the last round that a client need not receive again from the ledger.

        The result is 0 for a client that must start again and needs all kept records.

        Args:
            entry: the client.
            last_round: last round in the ledger.
        """
        if entry.follows:
            self._followers.add(entry.client)
        if entry.round <= last_round and entry.follows is not False:
            return entry.round
        restored = self._restored
        known = restored.reached if restored else None
        if restored is None or entry.client in self._followers:
            if entry.round > last_round:
                self._warn(entry, last_round, _TWO_SERVERS)
            return min(entry.round, last_round)
        if known is not None and entry.round > known:
            self._warn(entry, last_round, _MORE_REACHED.format(known))
            return min(entry.round, last_round)
        self._warn(entry, last_round, "this run was restored from a backup without that round")
        return 0

    def _warn(self, entry: RosterEntry, last_round: int, why: str) -> None:
        if entry.client not in self._warned:
            self._warned.add(entry.client)
            log.warning(
                "client %d reports that it is at round %d, but this ledger ends at round %d: %s",
                *(entry.client, entry.round, last_round, why),
            )


class RoundPlanner:
    """A planner that samples the cohort of a round and writes the round's instruction.

    Args:
        config: settings of the run.
        store: ledger and layout of the run.
        roster: clients of the run.
        health: failures of the clients; clients that rest are not selected.
        cohorts: cohorts of a recorded run, used in place of sampled cohorts.

    Attributes:
        terms: terms of the run.
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
        self.terms, self._newcomers = config.terms, config.newcomers
        self._key = read_cohort_secret(store.folder) or config.seed
        self._strays = StrayClients(RestoredRun.read(store.folder))

    @property
    def minimum(self) -> int:
        """The minimum number of reports with which a round changes the model.

        The number is `cohort.minimum`, or the size of the cluster if that is smaller.
        """
        minimum = self._config.cohort.minimum
        most = self._roster.most_clients
        return minimum if most is None else min(minimum, most)

    def plan_round(
        self, grid: Grid, step_size: StepSize, joint_clip: float = 0.0
    ) -> Request[TrainInstruction]:
        """Plan the next round: return its instruction and the messages to its cohort.

        The call waits for enough connected clients, for at most `cohort.timeout` seconds.

        Args:
            grid: the grid that knows which nodes are connected.
            step_size: the run's current step size.
            joint_clip: adaptive clip of the round; 0 if the clip is fixed.

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
        """Return the instruction of the round of intercepts, and the messages to training clients.

        Args:
            grid: the grid that knows which nodes are connected.
            joint_clip: adaptive clip of the round; 0 if the clip is fixed.
        """
        ledger, layout = self._store.ledger, self._store.layout
        bias = layout.label_bias
        assert bias is not None, "a run with intercepts has a label bias"
        instruction = intercept_instruction(
            self.terms,
            *(ledger.header.run_id, layout.hash, ledger.digest),
            labels=bias.stop - bias.start,
            joint_clip=joint_clip,
        )
        connected = self._roster.entries_of(grid.get_node_ids())
        if self._cohorts:
            clients = self._cohorts.clients_of(instruction.round)
        else:
            clients = [client for client in connected if client not in self._newcomers]
        entries = [connected[client] for client in clients]
        return Request(
            instruction, *self._address(instruction.encode(), MessageType.TRAIN, entries)
        )

    def plan_evaluation(
        self, grid: Grid, split: Split, action: str = ""
    ) -> Request[EvaluateInstruction]:
        """Return the instruction and the messages to evaluate the current state on all clients.

        Args:
            grid: the grid that knows which nodes are connected.
            split: the split of each client to evaluate.
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
        """Return the clients of the cohort, ascending, and the number of reports to wait for.

        The number is 0 if the round waits for the reports of the whole cohort.
        """
        if self._cohorts:
            recorded = self._cohorts.clients_of(number)
            if missing := [client for client in recorded if client not in connected]:
                raise SamaraError(f"these clients of the recorded run are not connected: {missing}")
            return recorded, 0
        settings = self._config.cohort
        training = [client for client in connected if client not in self._newcomers]
        awake = [client for client in training if not self._health.is_resting(client, number)]
        if len(awake) < self.minimum:
            awake = training
        wanted = sample_cohort(self._key, number, awake, settings.fraction, self.minimum)
        size = math.ceil(round(settings.oversample * len(wanted), 9))
        most = max(self.minimum, size)
        cohort = sample_cohort(self._key, number, awake, settings.fraction, most)
        return cohort, len(wanted)

    def _train_instruction(
        self, number: int, step_size: StepSize, joint_clip: float
    ) -> TrainInstruction:
        config = self._config
        return self.terms.instruction(
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
        """Return one message per client, and the bytes of each message by client.

        A message contains the frame and the ledger records that the client lacks.
        """
        ledger = self._store.ledger
        settings = self._config.cohort
        last_round = ledger.position.round
        seconds = settings.timeout * (1 + settings.late_rounds)
        catch_up_from = cache(ledger.catch_up)
        messages = []
        bytes_down = {}
        for entry in entries:
            catch_up = catch_up_from(self._strays.round_to_send_from(entry, last_round))
            bytes_down[entry.client] = len(frame) + len(catch_up)
            group = str(last_round + 1)
            messages.append(make_message(entry.node, message_type, group, frame, catch_up, seconds))
        return messages, bytes_down
