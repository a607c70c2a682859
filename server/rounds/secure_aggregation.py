"""Secure aggregation on the server: rounds of masked reports that reveal only sums to the server.

Before the train instruction the server collects keys and sealed shares. The clients that then send
a masked report are the survivors. Each survivor signs the list of survivors and sends the shares
that remove the masks (`samara.shared.protocol.frames.masking`). After any failure the server
abandons the round. The ledger then records a round that does not change the model, and the next
round has a new token and fresh masks.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from samara.server.rounds.aggregation import check_vector_report
from samara.server.rounds.event_log import hidden_client_fields
from samara.server.rounds.masking_exchange import MaskingExchange
from samara.server.rounds.planner import Request
from samara.server.rounds.private_aggregator import (
    PrivateAggregator,
    PrivateRoundAnswers,
    RoundTotal,
    VectorTotal,
)
from samara.server.rounds.report_validation import ReplyValidator
from samara.server.rounds.round_answers import AnsweredRound
from samara.server.rounds.unmasking import MaskedRound, recover_sum
from samara.server.store import RunStore
from samara.shared.errors import MaskingError, ReportError
from samara.shared.protocol.frames.bucket_keys import BucketKeyList
from samara.shared.protocol.frames.instructions import TrainInstruction
from samara.shared.protocol.frames.masking import (
    KeyList,
    KeyRequest,
    MaskingKeys,
    RevealedShares,
    SealedShares,
    SignatureList,
    SurvivorList,
    SurvivorSignature,
)
from samara.shared.protocol.frames.vector_report import MaskedReport
from samara.shared.protocol.secure_aggregation.buckets import draw_buckets, fewest_in_a_sum
from samara.shared.protocol.secure_aggregation.graph import least_number, neighbourhoods
from samara.shared.protocol.secure_aggregation.keys import load_public
from samara.shared.protocol.secure_aggregation.masks import Masked
from samara.shared.protocol.signing import is_signed_by
from samara.shared.protocol.wire import RECORD, SHARES
from samara.shared.settings.config import RunConfig
from samara.shared.storage.events import append_event, read_events
from samara.shared.storage.files import disk_errors_explained

log = logging.getLogger("samara.server")

MASKED_ROUNDS_FILE = "masked-rounds.jsonl"
"""File beside the ledger that lists the token of every round whose masking has begun."""

Part = TypeVar("Part")
Made = TypeVar("Made")


class MaskedRoundAnswers(PrivateRoundAnswers):
    """Validates and aggregates the answers of a run with masks; see `RoundAnswers`."""

    def __init__(self, config: RunConfig, store: RunStore, validator: ReplyValidator) -> None:
        super().__init__(config, store, validator)
        self._masking = SecureAggregation(config, store, validator, self._private)

    def prepare(self, request: Request[TrainInstruction], grid: Grid) -> Request[TrainInstruction]:
        """Return the round's request, addressed only to the clients that have agreed on masks.

        See `SecureAggregation.begin`.
        """
        return self._masking.begin(request, grid)

    def fold(
        self, request: Request[TrainInstruction], replies: Iterable[Message], minimum: int
    ) -> AnsweredRound:
        """Aggregate the replies to the round; see `RoundAnswers.fold`."""
        instruction = request.instruction
        masked = self._masking.finish(replies)
        released = self._private.aggregate_total(
            instruction, masked.total, minimum, request.expected_reports
        )
        up, down = masked.bytes_up, masked.bytes_down
        return AnsweredRound(
            released,
            masked.active,
            masked.refused,
            sum(up.values()),
            sum(down.values()),
            hidden_client_fields(instruction.report_scalars, masked.reporting, up, down),
        )


class SecureAggregation:
    """The server's side of secure aggregation, which computes a sum of reports, or one per bucket.

    Args:
        config: settings of the run.
        store: folder of the run.
        validator: validator of the replies.
        private: aggregator that receives the sums and knows the releases.
    """

    def __init__(
        self,
        config: RunConfig,
        store: RunStore,
        validator: ReplyValidator,
        private: PrivateAggregator,
    ) -> None:
        self._minimum, self._timeout = config.cohort.minimum, config.cohort.timeout
        self._bucket = config.privacy.bucket
        self._fewest = fewest_in_a_sum(self._bucket, self._minimum)
        self._validator, self._private = validator, private
        self._file = store.folder / MASKED_ROUNDS_FILE
        self._begun = {str(event.get("token")) for event in read_events(self._file)}
        self._round: MaskingExchange | None = None

    def begin(self, request: Request[TrainInstruction], grid: Grid) -> Request[TrainInstruction]:
        """Let the cohort agree on masks; return a request for the clients that have agreed.

        Args:
            request: instruction of the round and the messages to its cohort.
            grid: grid that sends the messages of the agreement.

        Returns:
            The request to the clients that have agreed, with the sealed shares for each client. It
            has no messages if the round is abandoned, or if the round's sum was released before
            the server was stopped.

        Raises:
            LedgerError: if the folder cannot be written.
        """
        nodes = dict(
            zip(request.bytes_down, (m.metadata.dst_node_id for m in request.messages), strict=True)
        )
        run = self._round = MaskingExchange(
            grid, self._validator, request.instruction, nodes, self._timeout
        )
        if self._private.is_released(run.token):
            return replace(request, messages=[], bytes_down={})
        try:
            self._note_begin(request.instruction.round, run.token)
            sealed = self._agree(run)
        except MaskingError as error:
            run.problem = str(error)
            return replace(request, messages=[])
        messages = []
        for client, message in zip(request.bytes_down, request.messages, strict=True):
            if client in sealed:
                frame = sealed[client].encode()
                message.content.config_records[RECORD][SHARES] = frame
                run.bytes_down[client] += len(frame) + request.bytes_down[client]
                messages.append(message)
        wanted = request.wanted_reports
        if wanted:  # fewer reports would not suffice to recover the sum
            agreed = [least_number(len(known.keys)) for known in run.known]
            wanted = len(messages) if self._bucket else max(wanted, *agreed)
        return replace(request, messages=messages, wanted_reports=wanted)

    def finish(self, replies: Iterable[Message]) -> "MaskedAnswers":
        """Return the answers to a masked round, and the sum or sums of the masked reports.

        Args:
            replies: replies to the train instruction.
        """
        run = self._round
        assert run is not None, "begin must be called first"
        total = RoundTotal()

        def check(report: MaskedReport) -> None:
            check_vector_report(report, run.instruction, self._private.mechanism)

        if run.known and not run.problem:
            try:
                total = self._unmask(run, run.receive(replies, check))
            except MaskingError as error:
                run.problem = str(error)
        if run.problem:
            log.warning("round %d is abandoned: %s", run.instruction.round, run.problem)
            total = RoundTotal(problem=f"the round is abandoned: {run.problem}")
        active = {*run.active, *run.idle}
        refused = {c: why for c, why in run.refused.items() if c not in active}
        up, down = run.bytes_up, run.bytes_down
        return MaskedAnswers(total, sorted(active), run.reporting, refused, up, down)

    def _note_begin(self, number: int, token: bytes) -> None:
        """Record on the disk that the masking of a round has begun.

        Raises:
            MaskingError: if the masking had begun before the server was stopped. Clients reveal the
                shares of a round only once, so that the server cannot learn a second sum of the
                round's vectors.
        """
        if token.hex() in self._begun:
            raise MaskingError("the server was stopped after masking had begun")
        with disk_errors_explained(self._file):
            append_event(self._file, {"round": number, "token": token.hex()})
        self._begun.add(token.hex())

    def _agree(self, run: MaskingExchange) -> dict[int, SealedShares]:
        """Let the clients exchange keys and shares; return the sealed shares for each client.

        Only clients that have shared their secrets receive shares.

        Raises:
            MaskingError: if too few clients have shared their secrets.
        """
        request = KeyRequest(run.token).encode()

        def check_keys(keys: MaskingKeys) -> None:
            if not is_signed_by(keys.device_key, keys.signature, keys.signed):
                raise ReportError("its keys have no valid signature of its device")
            self._validator.check_device(run.nodes[keys.client], keys.device_key)
            load_public(keys.sealing_key)
            load_public(keys.mask_key)

        keys = run.ask(dict.fromkeys(run.nodes, request), MaskingKeys, check_keys)
        listed = tuple(keys)
        self._check_enough(len(keys), len(run.nodes), "sent keys", self._minimum)
        digests = {client: keys[client].digest for client in listed}
        size = self._bucket
        buckets = draw_buckets(run.token, digests, size) if size else [list(listed)]
        around: dict[int, list[int]] = {}
        for bucket in buckets:
            around |= neighbourhoods(run.token, bucket)
        lists = {}
        for client in listed:
            own = KeyList(run.token, listed, tuple(keys[one] for one in around[client]))
            drawn = BucketKeyList(own, tuple(digests.values()))
            lists[client] = drawn.encode() if size else own.encode()

        def check_shares(shares: SealedShares) -> None:
            if [*shares.sealed] != [one for one in around[shares.client] if one != shares.client]:
                raise ReportError("its shares are not for its neighbours")

        sent = run.ask(lists, SealedShares, check_shares)
        begun = [MaskedRound.of(run.token, bucket, keys, around, sent) for bucket in buckets]
        run.known = self._keep(run, begun, self._check_agreed)
        agreed = [client for known in run.known for client in known.partners]
        run.idle = sent.keys() - agreed
        self._check_enough(len(agreed), len(keys), "shared their secrets", self._minimum)
        return {
            client: SealedShares(
                run.token,
                client,
                {o: sent[o].sealed[client] for o in around[client] if o in sent and o != client},
            )
            for client in agreed
        }

    def _keep(
        self, run: MaskingExchange, buckets: Iterable[Part], make: Callable[[Part], Made]
    ) -> list[Made]:
        """Apply `make` to each bucket, and return the results of the buckets that do not fail.

        A round without buckets is a single bucket.

        Args:
            run: the round in progress.
            buckets: the buckets.
            make: function that raises a `MaskingError` if a bucket fails.

        Raises:
            MaskingError: if `make` fails for every bucket.
        """
        made = []
        problem = MaskingError("no bucket has enough clients")
        for bucket in buckets:
            try:
                made.append(make(bucket))
            except MaskingError as error:
                problem = error
                if self._bucket:
                    log.warning("round %d: a bucket is left out: %s", run.instruction.round, error)
        if not made:
            raise problem
        return made

    def _check_agreed(self, known: MaskedRound) -> MaskedRound:
        """Return the bucket unchanged if enough of its clients have shared their secrets.

        Raises:
            MaskingError: if too few clients have shared their secrets.
        """
        sent = known.partners
        least = self._least_of(known)
        self._check_enough(len(sent), len(known.keys), "shared their secrets", least)
        for client in sent:
            around = sum(one in sent for one in known.neighbourhoods[client])
            if around < known.threshold_of(client):
                raise MaskingError(f"too few neighbours of client {client} shared their secrets")
        return known

    def _least_of(self, known: MaskedRound) -> int:
        return max(self._fewest, least_number(len(known.keys)))

    def _unmask(self, run: MaskingExchange, masked: Mapping[int, Masked]) -> RoundTotal:
        """Return the sums of masked vectors.

        Raises:
            MaskingError: if a sum cannot be recovered.
        """

        def stayed(known: MaskedRound) -> tuple[MaskedRound, dict[int, Masked]]:
            own = {client: vector for client, vector in masked.items() if client in known.keys}
            count = len(own)
            least = self._least_of(known)
            self._check_enough(count, len(known.keys), "sent masked reports", least)
            return known, own

        buckets = self._keep(run, run.known, stayed)
        survivors = {c: SurvivorList(run.token, tuple(own)) for _, own in buckets for c in own}
        self._check_enough(len(survivors), len(run.nodes), "are in a sum", self._minimum)
        around = {c: at for known, _ in buckets for c, at in known.neighbourhoods.items()}
        keys = {c: own for known, _ in buckets for c, own in known.keys.items()}
        digests = {c: known.clients_digest for known, _ in buckets for c in known.keys}

        def is_signed(signature: SurvivorSignature) -> None:
            client = signature.client
            key = keys[client].device_key
            signed = survivors[client].signed(digests[client])
            if not is_signed_by(key, signature.signature, signed):
                raise ReportError("it has not signed the list of survivors")

        asked = {client: listed.encode() for client, listed in survivors.items()}
        signed = run.ask(asked, SurvivorSignature, is_signed)
        lists = {}
        for client in signed:
            signatures = {one: signed[one].signature for one in around[client] if one in signed}
            if len(signatures) >= least_number(len(around[client])):
                lists[client] = SignatureList(run.token, signatures).encode()
        revealed = run.ask(lists, RevealedShares) if lists else {}
        run.active = run.reporting

        def recover(bucket: tuple[MaskedRound, dict[int, Masked]]) -> VectorTotal:
            known, own = bucket
            total = recover_sum(known, own, [revealed[c] for c in own if c in revealed])
            longest = len(own) * self._private.mechanism.longest_report
            if not self._bucket and np.linalg.norm(total.astype(np.float64)) > longest:
                raise MaskingError(
                    "the norm of the sum is larger than the norms of honest reports allow"
                )
            return VectorTotal(total, len(own))

        total = RoundTotal(tuple(self._keep(run, buckets, recover)))
        self._check_enough(total.clients, len(run.nodes), "are in a sum", self._minimum)
        return total

    @staticmethod
    def _check_enough(count: int, asked: int, what: str, least: int) -> None:
        if count < least:
            raise MaskingError(f"{count} of {asked} clients {what}, but {least} are needed")


@dataclass(frozen=True)
class MaskedAnswers:
    """The answers to a round with masks.

    Attributes:
        total: sums of the vectors, or the reason for the missing sums.
        active: clients that answered every message that they received.
        reporting: clients with a masked report.
        refused: reason for refusing a client's answer, by client.
        bytes_up, bytes_down: bytes of all messages, by client.
    """

    total: RoundTotal
    active: Collection[int]
    reporting: Collection[int]
    refused: Mapping[int, str]
    bytes_up: Mapping[int, int]
    bytes_down: Mapping[int, int]
