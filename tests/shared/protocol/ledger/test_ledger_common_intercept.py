"""The common intercept in the ledger of a federation, and clients that catch up past it."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from federations import config_of
from helpers import delta_of, history_of, layout_of

from samara.client.protocol.session import Session, SharedCatchUp
from samara.client.protocol.session_store import decode_session, encode_session
from samara.shared.errors import CatchUpError, FrameError, LedgerError
from samara.shared.protocol import round_delta
from samara.shared.protocol.frames.instructions import PERSONAL_TRACK
from samara.shared.protocol.layout import Tensor
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.ledger.records import CatchUp
from samara.shared.protocol.ledger.verification import verify_ledger
from samara.shared.protocol.replay import DenseValues
from samara.shared.protocol.round_delta import CommonDeviation, RoundDelta

BARE = layout_of()
LAYOUT = replace(BARE, tensors=(*BARE.tensors, Tensor("label bias", 3, 1, "label bias")))
INTERCEPT = DenseValues(20, np.array([7, -2, -5], np.int64))
DEVIATION = CommonDeviation(3)


def adding(*entries: DenseValues | CommonDeviation, number: int = 5, track: int = 0) -> RoundDelta:
    return RoundDelta(number, track, bytes(8), (), entries)


HISTORY = history_of([*map(delta_of, range(1, 5)), adding(INTERCEPT, DEVIATION)], LAYOUT)
GOAL = 5, HISTORY.digests[5]


def written(folder: Path, every: int) -> Ledger:
    ledger = Ledger(folder, HISTORY.header, LAYOUT, every)
    for delta in HISTORY.deltas:
        ledger.append(delta)
    return ledger


@pytest.mark.parametrize("every", [0, 1, 5])
def test_every_client_can_tell_it_from_the_rest_of_the_state(tmp_path: Path, every: int) -> None:
    written(tmp_path, every).close()
    with closing(Ledger(tmp_path, HISTORY.header, LAYOUT, every)) as ledger:
        assert (ledger.position.round, ledger.digest) == GOAL
        shared, anew = SharedCatchUp(), Session.begin(HISTORY.header, LAYOUT)
        for since in range(5):
            missed = ledger.catch_up(since)
            assert bool(missed.snapshot) == (since < 3)
            before = CatchUp(tail=HISTORY.tail(0, since))
            at = since, HISTORY.digests[since]
            early = anew.catch_up(before, HISTORY.header, LAYOUT, *at)
            assert (early.common, early.deviation) == (None, None)
            for reach in (Session.catch_up, shared.reach, shared.reach):
                session = reach(early, missed, HISTORY.header, LAYOUT, *GOAL)
                kept = decode_session(encode_session(session))
                assert kept.common is not None
                assert kept.deviation == DEVIATION
                terms = config_of({}, method="readout", adapter__label_bias=True).terms
                prior = kept.common_prior(replace(terms, has_common_prior=True))
                assert prior.deviation == 2.0
                assert kept.common_prior(terms).deviation is None
                assert prior.intercept is not None
                np.testing.assert_array_equal(kept.common.values, INTERCEPT.values)
                np.testing.assert_array_equal(kept.state - prior.intercept, HISTORY.states[4])
        rebuilt = replace(session, digest=bytes(32)).catch_up(
            ledger.catch_up(0), HISTORY.header, LAYOUT, *GOAL
        )
        assert rebuilt.common is not None
        assert rebuilt.deviation == DEVIATION
    *_, last = verify_ledger(tmp_path, LAYOUT)
    np.testing.assert_array_equal(last.state, HISTORY.states[5])


def test_sessions_without_it_are_the_files_that_they_were() -> None:
    session = Session.begin(HISTORY.header, LAYOUT)
    assert list(session.to_bytes()) == list(Session.PARTS)
    assert decode_session(encode_session(session)).common is None


@pytest.mark.parametrize(
    ("entries", "track"),
    [
        ([DEVIATION], 0),
        ([DEVIATION, INTERCEPT], 0),
        ([INTERCEPT, DEVIATION, DEVIATION], 0),
        ([INTERCEPT, DEVIATION], PERSONAL_TRACK),
    ],
)
def test_a_common_deviation_only_follows_a_common_intercept(
    entries: Sequence[DenseValues | CommonDeviation], track: int
) -> None:
    with pytest.raises(FrameError, match="only follow a common intercept"):
        RoundDelta.decode(adding(*entries, track=track).encode())


def test_a_deviation_that_is_no_candidate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later_version:
        later_version.setattr(round_delta, "INTERCEPT_DEVIATIONS", (1.0,) * 6)
        frame = adding(INTERCEPT, CommonDeviation(5)).encode()
    with pytest.raises(FrameError, match="common deviation 5 is not a candidate"):
        RoundDelta.decode(frame)
    session = replace(Session.begin(HISTORY.header, LAYOUT), common=INTERCEPT, deviation=DEVIATION)
    saved = session.to_bytes()
    with pytest.raises(CatchUpError, match="the saved session is damaged"):
        Session.from_bytes(saved | {"common": saved["common"][:-1] + b"\5"})


@pytest.mark.parametrize(
    "entries",
    [
        [DenseValues(19, INTERCEPT.values)],
        [DenseValues(20, INTERCEPT.values[:2])],
        [DenseValues(0, np.ones(23, np.int64))],
        [INTERCEPT, INTERCEPT],
    ],
)
def test_other_dense_values_are_an_upload_of_weights(
    tmp_path: Path, entries: Sequence[DenseValues]
) -> None:
    delta = adding(*entries)
    with closing(Ledger(tmp_path, HISTORY.header, LAYOUT, 0)) as ledger:
        for earlier in HISTORY.deltas[:4]:
            ledger.append(earlier)
        with pytest.raises(LedgerError, match="the label bias alone"):
            ledger.append(delta)
        assert ledger.position.round == 4
    forged = history_of([*HISTORY.deltas[:4], delta], LAYOUT)
    goal = 5, forged.digests[5]
    with pytest.raises(CatchUpError, match=r"the label bias alone|among other entries"):
        Session.begin(HISTORY.header, LAYOUT).catch_up(
            CatchUp(tail=forged.tail(0)), HISTORY.header, LAYOUT, *goal
        )
    if len(entries) > 1:
        with pytest.raises(FrameError, match="among other entries"):
            RoundDelta.decode(delta.encode())
        RoundDelta.decode(adding(*entries, track=PERSONAL_TRACK).encode())
    without = history_of([adding(DenseValues(17, INTERCEPT.values), number=1)], BARE)
    with pytest.raises(CatchUpError, match="the label bias alone"):
        Session.begin(without.header, BARE).catch_up(
            CatchUp(tail=without.tail(0)), without.header, BARE, 1, without.digests[1]
        )
