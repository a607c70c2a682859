"""A catch-up in slices and steps obeys pauses, loses nothing, and ends like a single catch-up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import delta_of, history_of, layout_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from samara.client.forward.turns import Turns, take_turns
from samara.client.limits.pauses import Pauses
from samara.client.protocol import session as session_module
from samara.client.protocol import stepwise_catch_up
from samara.client.protocol.session import MOST_SHRINKS, Session
from samara.client.protocol.stepwise_catch_up import SlicedBackend, reach_in_steps
from samara.shared.errors import CatchUpError, PausedError
from samara.shared.protocol.ledger.records import CatchUp, snapshot_bytes
from samara.shared.protocol.message_sizes import INTERCEPT_RECORD_BYTES, SHORT_RECORD_BYTES
from samara.shared.protocol.replay import Shrink, default_backend, digest
from samara.shared.protocol.round_delta import RoundDelta

ROUNDS = 8
LAYOUT = layout_of(distribution="rademacher")
HISTORY = history_of([delta_of(n) for n in range(1, ROUNDS + 1)], LAYOUT)
WHOLE = Session.begin(HISTORY.header, LAYOUT).catch_up(
    CatchUp(tail=HISTORY.tail(0)), HISTORY.header, LAYOUT, ROUNDS, HISTORY.digests[-1]
)


class Killed(BaseException):
    """The end of the client's process."""


class Device:
    """A device's folder with a session; a message ends with a pause or a kill of the process.

    Args:
        ends: for each message, the number of turns after which it ends, and the error that ends it.
    """

    def __init__(self, ends: Sequence[tuple[int, type[BaseException]]]) -> None:
        self.kept = Session.begin(HISTORY.header, LAYOUT).to_bytes()
        self.turns = self.messages = 0
        self._ends = [*ends]

    def keep(self, session: Session) -> None:
        assert session.position.round > self.round
        assert session.position == HISTORY.position(session.position.round)
        self.kept = session.to_bytes()

    @property
    def round(self) -> int:
        return Session.from_bytes(self.kept).position.round

    @contextmanager
    def turn(self, left: list[int], error: type[BaseException]) -> Iterator[None]:
        self.turns += 1
        left[0] -= 1
        if left[0] < 0:
            raise error
        yield

    def answer(self, catch_up: CatchUp, is_late: Callable[[], bool]) -> None:
        """Catch up in a message of a server; store the session after each step and at the end."""
        self.messages += 1
        end, error = self._ends.pop(0) if self._ends else (10**9, Killed)

        def work() -> None:
            take_turns(partial(self.turn, [end], error))
            reach = reach_in_steps(self.keep, is_late, has_intercept=False)
            given = HISTORY.header, LAYOUT, ROUNDS, HISTORY.digests[-1], default_backend()
            self.kept = reach(Session.from_bytes(self.kept), catch_up, *given).to_bytes()

        copy_context().run(work)


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([PausedError, Killed])), max_size=6),
    st.lists(st.booleans(), max_size=8),
    st.lists(st.tuples(st.booleans(), st.integers(0, ROUNDS)), max_size=20),
)
def test_any_slices_pauses_and_kills_end_as_one_whole_catch_up(
    slice_elements: int,
    records: int,
    elements: int,
    ends: list[tuple[int, type[BaseException]]],
    lates: list[bool],
    sent: list[tuple[bool, int]],
) -> None:
    """The server sends records or snapshots until the client has its state.

    The server may start from an earlier round than the client's.
    """
    device, late = Device(ends), iter(lates)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepwise_catch_up, "SLICE_ELEMENTS", slice_elements)
        patch.setattr(session_module, "STEP_RECORDS", records)
        patch.setattr(session_module, "STEP_ELEMENTS", elements)
        while device.round < ROUNDS:
            has_snapshot, number = sent.pop() if sent else (False, device.round)
            if has_snapshot and number:
                missed = CatchUp(HISTORY.snapshot(number), HISTORY.tail(number))
            else:
                missed = CatchUp(tail=HISTORY.tail(min(number, device.round)))
            before = device.round
            ended: BaseException | None = None
            try:
                device.answer(missed, lambda: next(late, False))
            except (CatchUpError, PausedError, Killed) as error:
                ended = error
            if isinstance(ended, CatchUpError):
                assert ended.numbers == (ROUNDS, device.round)
                assert device.round > before
            assert device.round >= before
            assert device.messages < 40
    assert device.kept == WHOLE.to_bytes()


@given(st.integers(1, 200), st.integers(0, 30))
def test_slices_are_the_fold_of_all(slice_elements: int, count: int) -> None:
    rng = np.random.default_rng(count)
    seeds = rng.integers(2**64, size=count, dtype=np.uint64)
    coefficients = rng.integers(-(2**40), 2**40, size=count)
    states = np.zeros((2, LAYOUT.size), np.int64)
    backend = default_backend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepwise_catch_up, "SLICE_ELEMENTS", slice_elements)
        SlicedBackend(backend).fold(states[0], seeds, coefficients, "gaussian")
    backend.fold(states[1], seeds, coefficients, "gaussian")
    np.testing.assert_array_equal(*states)


class Clock:
    """A clock that advances only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_replay_waits_for_the_owners_limits_slice_by_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is hot before every slice, and the server waits for 100 s."""
    monkeypatch.setattr(stepwise_catch_up, "SLICE_ELEMENTS", LAYOUT.size)
    clock, looks = Clock(), iter(range(10**9))
    begun = [False]
    pauses = Pauses(lambda: "hot" if begun[0] and next(looks) % 2 == 0 else "", clock, clock.wait)

    def catch_up() -> Session:
        take_turns(Turns(pauses.before_pass).training_pass)
        with pauses.message(100.0) as is_late:
            begun[0] = True
            reach = reach_in_steps(lambda session: None, is_late, has_intercept=False)
            start, tail = Session.begin(HISTORY.header, LAYOUT), CatchUp(tail=HISTORY.tail(0))
            goal = HISTORY.header, LAYOUT, ROUNDS, HISTORY.digests[-1], default_backend()
            return reach(start, tail, *goal)

    assert copy_context().run(catch_up).to_bytes() == WHOLE.to_bytes()
    slices = sum(len(group.scalars.coefficients) for d in HISTORY.deltas for group in d.groups)
    assert pauses.seconds == pytest.approx(0.2 * slices)


def never_replayed(*given: Any) -> NDArray[np.int64]:
    raise AssertionError("a record was replayed")


@pytest.mark.parametrize("has_intercept", [False, True])
def test_more_records_than_the_state_is_long_are_refused_before_a_replay(
    has_intercept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = INTERCEPT_RECORD_BYTES if has_intercept else SHORT_RECORD_BYTES
    assert snapshot_bytes(LAYOUT.size) < most
    monkeypatch.setattr(session_module, "replay_batch", never_replayed)
    reach = reach_in_steps(lambda session: None, lambda: False, has_intercept)
    begun = Session.begin(HISTORY.header, LAYOUT)
    with pytest.raises(CatchUpError, match=f"elements is {most} bytes"):
        reach(begun, CatchUp(tail=bytes(most + 1)), HISTORY.header, LAYOUT, 1, bytes(32))


def test_a_record_of_many_shrinks_is_refused_before_a_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shrink takes 2 bytes in a record, but its replay reads the whole state."""
    delta = RoundDelta(1, 0, bytes(8), (), (Shrink(1),) * (MOST_SHRINKS + 1))
    history = history_of([delta], LAYOUT)
    monkeypatch.setattr(session_module, "replay_batch", never_replayed)
    begun = Session.begin(history.header, LAYOUT)
    goal = history.header, LAYOUT, 1, digest(LAYOUT.hash, begun.state)
    with pytest.raises(CatchUpError, match="has 9 shrinks"):
        begun.catch_up(CatchUp(tail=history.tail(0)), *goal)


def test_what_is_late_goes_on_with_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for only one step of two rounds per message."""
    monkeypatch.setattr(session_module, "STEP_RECORDS", 2)
    device = Device([])
    for expected in (2, 4, 6):
        with pytest.raises(CatchUpError, match=f"continues after round {expected}"):
            device.answer(CatchUp(tail=HISTORY.tail(device.round)), lambda: True)
    device.answer(CatchUp(tail=HISTORY.tail(device.round)), lambda: True)
    assert device.kept == WHOLE.to_bytes()
