"""Measures how soon the longest catch-ups stand still after a limit of the owner is exceeded.

    python -m benchmarks.scale.paused_catch_up [--pauses 20]

A server sends as many records as a client takes, each with as many directions as fit. While they
are replayed, a limit is exceeded at random moments, and holds until the replay stands still. The
seconds in between are shown, without the second in which the watch of a client looks once.
"""

import argparse
import threading
import time
from contextvars import copy_context

import numpy as np

from samara.client.forward.turns import Turns, take_turns
from samara.client.protocol.pauses import Pauses
from samara.client.protocol.session import Session
from samara.client.protocol.stepwise_catch_up import reach_in_steps
from samara.shared.errors import CatchUpError
from samara.shared.layout import ADAPTER_GROUP, Layout, Tensor
from samara.shared.ledger.records import CatchUp, LedgerHeader, Record
from samara.shared.message_sizes import most_record_bytes
from samara.shared.replay import CoefficientBlock, default_backend, digest, replay
from samara.shared.round_delta import DerivedSeeds, Group, RoundDelta

SIZES = (512, True), (512, False), (100_000, False)
"""Trained numbers, and whether the run has a common intercept, before which records are longest."""
EARLIER_BYTES = 64 * 2**20
"""The records that a server could send before they were bounded."""
_COEFFICIENT_BYTES, _HEADER_BYTES, _MOST_QUERIES = 4, 4000, 30_000
_SECONDS = 3600.0


class Limit:
    """A limit that is exceeded from time to time, and the seconds until it was obeyed."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._since, self._obeyed = 0.0, threading.Event()

    def reason(self) -> str:
        """Return why nothing may be computed now; asked before every slice."""
        if not self._since:
            return ""
        self.seconds.append(time.perf_counter() - self._since)
        self._since = 0.0
        self._obeyed.set()
        return "hot"

    def exceed(self, replaying: threading.Thread) -> None:
        """Exceed the limit until that is obeyed, or the replay ends."""
        self._obeyed.clear()
        self._since = time.perf_counter()
        while replaying.is_alive() and not self._obeyed.wait(0.01):
            pass
        self._since = 0.0


def layout_of(elements: int) -> Layout:
    return Layout((Tensor("trained", elements, 1, ADAPTER_GROUP),), 1, 4.0, 7, "gaussian")


def record_of(header: LedgerHeader, layout: Layout, size: int) -> Record:
    """Return a round's record of at most so many bytes, as long as it can be."""
    count = (size - _HEADER_BYTES) // _COEFFICIENT_BYTES
    values = np.random.default_rng(0).integers(-100, 100, count).astype(np.int32)
    groups = tuple(
        Group(0, DerivedSeeds(7, stream, 1, len(part)), CoefficientBlock(0, part))
        for stream, part in enumerate(np.array_split(values, 1 + count // _MOST_QUERIES))
    )
    delta = RoundDelta(1, 0, bytes(8), (), groups)
    before = Session.begin(header, layout).state
    state = replay(before, delta.scalar_groups(), layout.distribution)
    return Record.create(header.start, delta, digest(layout.hash, state))


def measure(elements: int, has_intercept: bool, pauses: int) -> str:
    """Return what a catch-up of the most bytes took, and how soon it obeyed, as a line."""
    layout = layout_of(elements)
    header, limit = LedgerHeader(0, bytes(8), layout.hash), Limit()
    record = record_of(header, layout, most_record_bytes(elements, has_intercept))
    tail, rng, seconds = record.sent(), np.random.default_rng(1), list[tuple[float, float]]()
    reach = reach_in_steps(lambda session: None, lambda: False, has_intercept)
    goal = header, layout, 1, record.link.end_digest, default_backend()

    def replay_all() -> None:
        held = Pauses(limit.reason, wait=lambda _: None)
        take_turns(Turns(held.before_pass).training_pass)
        with held.message(_SECONDS):
            begun, used = time.perf_counter(), time.process_time()
            reach(Session.begin(header, layout), CatchUp(tail=tail), *goal)
            seconds.append((time.perf_counter() - begun, time.process_time() - used))

    def start() -> threading.Thread:
        thread = threading.Thread(target=copy_context().run, args=(replay_all,))
        thread.start()
        return thread

    start().join()
    whole, processor = seconds[0]
    while len(limit.seconds) < pauses:
        thread = start()
        while thread.is_alive() and len(limit.seconds) < pauses:
            time.sleep(float(rng.uniform(0, whole / 4)))
            limit.exceed(thread)
        thread.join()
    worst, median = max(limit.seconds), float(np.median(limit.seconds))
    return (
        f"d = {elements:,}, {len(tail):,} bytes of records: {whole:.2f} s, {processor:.2f} of a "
        f"core; of {pauses} pauses the slowest was obeyed after {worst:.2f} s, the median after "
        f"{median:.2f} s"
    )


def refusal(elements: int) -> str:
    """Return how long the records of earlier servers take now, as a line."""
    layout = layout_of(elements)
    header = LedgerHeader(0, bytes(8), layout.hash)
    reach = reach_in_steps(lambda session: None, lambda: False, True)
    tail, begun = CatchUp(tail=bytes(EARLIER_BYTES)), time.perf_counter()
    try:
        reach(Session.begin(header, layout), tail, header, layout, 1, bytes(32), None)
    except CatchUpError as error:
        return f"refused after {1000 * (time.perf_counter() - begun):.1f} ms: {error}"
    raise AssertionError("they were replayed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pauses", type=int, default=20)
    arguments = parser.parse_args()
    print(refusal(SIZES[0][0]), flush=True)
    for elements, has_intercept in SIZES:
        print(measure(elements, has_intercept, arguments.pauses), flush=True)


if __name__ == "__main__":
    main()
