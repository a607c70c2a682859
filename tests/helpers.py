"""Small layouts, instructions, reports and rounds that many tests start from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.directions import Distribution
from shared.frames import Report, SeedPolicy, TrainInstruction, token_of
from shared.layout import ADAPTER_GROUP, Layout, Tensor
from shared.ledger import LedgerHeader, encode_record
from shared.replay import Pass, digest, replay, zero_state
from shared.round_delta import Contributor, DerivedSeeds, Group, RoundDelta

RUN_ID = bytes(range(8))


def layout_of(size: int = 20, distribution: Distribution = "gaussian") -> Layout:
    tensors = (Tensor("first", 2, 1, ADAPTER_GROUP), Tensor("second", size - 2, 1, ADAPTER_GROUP))
    return Layout(tensors, 1, 4.0, 7, distribution)


def instruction_with(**changes: Any) -> TrainInstruction:
    fields: dict[str, Any] = {
        "run_id": RUN_ID,
        "round": 1,
        "track": 0,
        "steps": 2,
        "queries": 4,
        "batch": 8,
        "seed_policy": SeedPolicy.INDEPENDENT,
        "root": 0x0123456789ABCDEF,
        "epsilon": 0.01,
        "learning_rate": 0.1,
        "clip": 0.0,
        "deadline": 0.0,
        "layout_hash": bytes(32),
        "start_digest": bytes(range(32)),
    }
    if changes.get("seed_policy") is SeedPolicy.POOL:
        fields |= {"pool_root": 0xFEDCBA9876543210, "pool_size": 6}
    return TrainInstruction(**(fields | changes))


def report_to(
    instruction: TrainInstruction,
    device: int = 0,
    examples: int = 10,
    steps: int | None = None,
    **changes: Any,
) -> Report:
    """A sound report with random projected gradients, another set for every device."""
    shape = (instruction.steps if steps is None else steps, instruction.queries)
    gradients = np.random.default_rng(device).normal(size=shape).astype(np.float32)
    token = token_of(instruction.encode())
    fields: dict[str, Any] = {"mean_loss": 0.5, "gradients": gradients}
    if instruction.seed_policy is SeedPolicy.POOL:
        fields |= {"gradients": instruction.sums(gradients), "summed_steps": shape[0]}
    return Report(token, device, examples, **(fields | changes))


def delta_of(round_number: int) -> RoundDelta:
    """A round with one group of derived seeds and one of explicit seeds."""
    rng = np.random.default_rng(round_number)
    coefficients = rng.integers(-(2**31) + 1, 2**31, size=6).astype(np.int32)
    groups = (
        Group(round_number, DerivedSeeds(round_number, 1, 2, 2), Pass(3, coefficients[:4])),
        Group(
            round_number, rng.integers(2**64, size=2, dtype=np.uint64), Pass(0, coefficients[4:])
        ),
    )
    return RoundDelta(round_number, 0, bytes(8), (Contributor(0, 10, 2),), groups)


@dataclass(frozen=True)
class History:
    """Rounds of a run as a server would have them.

    `digests`, `states` and `sizes` (of the ledger, header included) have an entry for every
    round and one before the first.
    """

    layout: Layout
    header: LedgerHeader
    deltas: tuple[RoundDelta, ...]
    digests: tuple[bytes, ...]
    states: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    ledger: bytes

    def tail(self, since: int, until: int | None = None) -> bytes:
        """The records of the rounds after `since` up to `until`."""
        return self.ledger[self.sizes[since] : self.sizes[-1 if until is None else until]]


def history_of(deltas: Sequence[RoundDelta], layout: Layout) -> History:
    header = LedgerHeader(0, RUN_ID, layout.hash)
    ledger, head = header.encode(), header.start
    states, digests, sizes = [zero_state(layout.size)], [], [len(ledger)]
    digests.append(digest(layout.hash, states[0]))
    for delta in deltas:
        states.append(replay(states[-1], delta.scalar_groups(), layout.distribution))
        digests.append(digest(layout.hash, states[-1]))
        ledger += encode_record(delta, digests[-1], head)
        head = type(head)(delta.round, ledger[-32:])
        sizes.append(len(ledger))
    return History(
        layout, header, tuple(deltas), tuple(digests), tuple(states), tuple(sizes), ledger
    )


def assert_same(one: Any, other: Any) -> None:
    """Two frames of one type hold the same values, arrays included."""
    assert type(one) is type(other)
    np.testing.assert_equal(asdict(one), asdict(other))
