"""The size of a catch-up never exceeds the state's, whatever the cohort."""

import os
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import history_of, instruction_with, layout_of, report_to
from hypothesis import example, given, settings
from hypothesis import strategies as st

from samara.client.protocol.session import Session
from samara.shared.model.replay_torch import TorchBackend
from samara.shared.protocol.frames.instructions import EvaluateInstruction, SeedPolicy, Split
from samara.shared.protocol.layout import Layout, Tensor
from samara.shared.protocol.ledger.ledger import Ledger
from samara.shared.protocol.replay import Backend, CoefficientBlock, DenseValues, Shrink
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.protocol.replay_numpy import NumpyBackend
from samara.shared.protocol.round_delta import (
    ConsecutiveSeeds,
    Contributor,
    DerivedSeeds,
    Group,
    PoolSeeds,
    RoundDelta,
)

BACKENDS: list[Backend] = [NumpyBackend(), NumbaBackend(1), TorchBackend(torch.device("cpu"))]
POLICIES = st.sampled_from(list(SeedPolicy))
MOST = 400
"""Bytes by which a message may exceed the state."""
BIAS = 3


def round_of(
    number: int,
    policy: SeedPolicy,
    cohort: int,
    shape: tuple[int, int],
    passes: int,
    shrink: int,
    has_components: bool = False,
) -> RoundDelta:
    """A round in aggregation's form; a wide sum takes several passes of coefficients."""
    rng = np.random.default_rng(number)
    count = shape[0] * shape[1]

    def group(client: int) -> Group:
        source: DerivedSeeds | PoolSeeds | ConsecutiveSeeds = DerivedSeeds(number, client, *shape)
        if has_components:
            source = ConsecutiveSeeds(number, count)
        elif policy is SeedPolicy.POOL:
            source = PoolSeeds(7, rng.integers(64, size=count, dtype=np.uint32))
        coefficients = rng.integers(-(2**20), 2**20, count).astype(np.int32)
        return Group(number, source, CoefficientBlock(int(rng.integers(0, 4)), coefficients))

    alone = policy is SeedPolicy.INDEPENDENT
    groups = [group(one + 1 if alone else 0) for one in range(cohort if alone else 1)] * passes
    contributors = tuple(Contributor(one, 10, shape[0]) for one in range(cohort))
    ends = (Shrink(shrink),) if shrink else ()
    return RoundDelta(number, 0, bytes([number] * 8), contributors, (*groups, *ends))


@st.composite
def rounds(draw: st.DrawFn) -> list[RoundDelta]:
    policy, shape = draw(POLICIES), draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    has_components = policy is SeedPolicy.SHARED and draw(st.booleans())
    cohort = st.integers(0, 9) if policy is SeedPolicy.INDEPENDENT else st.integers(0, 300)
    return [
        round_of(
            number,
            policy,
            draw(cohort),
            shape,
            draw(st.integers(1, 3)),
            draw(st.integers(0, 3)),
            has_components,
        )
        for number in range(1, draw(st.integers(1, 9)) + 1)
    ]


def layout_with_bias(size: int) -> Layout:
    plain = layout_of(size)
    return replace(plain, tensors=(*plain.tensors, Tensor("label bias", BIAS, 1, "label bias")))


ONE_OF_MANY = [round_of(number, SeedPolicy.SHARED, 300, (1, 4), 1, 0) for number in (1, 2)]


@settings(max_examples=120)
@given(rounds(), st.integers(3, 300), st.integers(0, 3), st.booleans(), st.data())
@example(ONE_OF_MANY, 300, 0, False, None)
def test_a_catch_up_is_the_records_or_the_state_and_ends_where_all_rounds_do(
    deltas: list[RoundDelta], size: int, every: int, intercept: bool, data: st.DataObject | None
) -> None:
    layout = layout_with_bias(size) if intercept else layout_of(size)
    if intercept:
        common = DenseValues(size, np.array([9, -4, -5]))
        deltas = [*deltas, RoundDelta(len(deltas) + 1, 0, bytes(8), (), (common,))]
    history = history_of(deltas, layout)
    last = len(deltas)
    passed = data.draw(st.integers(0, last), "passed") if data else 0
    backend = data.draw(st.sampled_from(BACKENDS), "backend") if data else BACKENDS[0]
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        with closing(Ledger(Path(name), history.header, layout, every)) as ledger:
            for delta in deltas:
                ledger.append(delta)
                ledger.compact(min(passed, delta.round))
            given_to = [ledger.catch_up(since) for since in range(last + 1)]
        with closing(Ledger(Path(name), history.header, layout, every)) as ledger:
            assert [ledger.catch_up(since) for since in range(last + 1)] == given_to
    instruction = instruction_with(
        seed_policy=SeedPolicy.POOL, curvature_every=1, joint_clip=1.0, steps=2**15, queries=2**15
    ).encode()
    asked = EvaluateInstruction(bytes(8), last, 0, Split.TEST, layout.hash, history.digests[-1])
    state = 192 + 8 * layout.size
    more = 121 + 8 * BIAS if intercept else 0
    for since, catch_up in enumerate(given_to):
        records = len(history.tail(since))
        assert len(catch_up) <= state + more
        if not (catch_up.snapshot or passed):
            assert catch_up.tail == history.tail(since)
        assert not catch_up.snapshot or passed or records > state
        for frame in (instruction, asked.encode()):
            assert len(frame) + len(catch_up) <= 8 * layout.size + MOST + more
        start = Session(history.position(since), history.states[since], history.digests[since])
        goal = last, history.digests[-1]
        reached = start.catch_up(catch_up, history.header, layout, *goal, backend)
        np.testing.assert_array_equal(reached.state, history.states[-1])
        assert reached.position == history.position(last)
        if since < last:
            assert (reached.common is not None) == intercept


def test_contributors_make_no_catch_up_longer(tmp_path: Path) -> None:
    """With shared seeds, clients receive the same bytes for a round, whatever the cohort."""
    lengths = set()
    for cohort in (0, 1, 300):
        delta = round_of(1, SeedPolicy.SHARED, cohort, (1, 4), 1, 0)
        history = history_of([delta], layout_of(300))
        with closing(Ledger(tmp_path / str(cohort), history.header, history.layout, 0)) as ledger:
            ledger.append(delta)
            lengths.add(len(ledger.catch_up(0)))
    assert len(lengths) == 1


@pytest.mark.parametrize("cohort", [8, 1_000])
def test_a_round_of_shared_seeds_is_a_thousandth_of_averaged_weights_from_100_000_numbers_on(
    cohort: int, tmp_path: Path
) -> None:
    """Two steps of 16 directions, as by default inside a model; FedAvg sends float32 both ways."""
    steps, queries, size = 2, 16, 100_000
    delta = round_of(1, SeedPolicy.SHARED, cohort, (steps, queries), 1, 0)
    history = history_of([delta], layout_of(size))
    with closing(Ledger(tmp_path, history.header, history.layout, 0)) as ledger:
        ledger.append(delta)
        down = len(ledger.catch_up(0))
    instruction = instruction_with(steps=steps, queries=queries)
    down += len(instruction.encode())
    up = len(report_to(instruction).encode())
    assert 1_000 * (up + down) <= 2 * 4 * size
