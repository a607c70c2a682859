import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, instruction_with, report_to
from numpy.typing import NDArray

from samara.server.rounds.aggregation import aggregate
from samara.shared.errors import ReplayError
from samara.shared.protocol.directions import directions
from samara.shared.protocol.replay import (
    COEFFICIENT_BITS,
    MAX_SHRINK,
    CoefficientBlock,
    Shrink,
    check_fits,
    default_backend,
    digest,
    quantize,
    rebuild,
    replay,
    summed,
    to_float32,
    zero_state,
)
from samara.shared.protocol.replay_numpy import NumpyBackend

WIDEST = 2**31 - 1
NO_STATE = zero_state(1)


def one_pass(shift: int, *coefficients: int) -> CoefficientBlock:
    return CoefficientBlock(shift, np.array(coefficients, np.int32))


def quantized(*coefficients: float) -> list[tuple[int, list[int]]]:
    return [(p.shift, p.coefficients.tolist()) for p in quantize(np.array(coefficients))]


def test_replay_is_the_written_formula_in_whole_numbers() -> None:
    seeds = np.array([3, 2**63 + 1, 5], np.uint64)
    z = directions(seeds, 7, "gaussian")
    scalars = one_pass(10, WIDEST, -WIDEST, 12_345)
    state = np.random.default_rng(0).integers(-(2**61), 2**61, size=7)
    expected = [
        int(state[i])
        + (sum(int(c) * int(z[n, i]) for n, c in enumerate(scalars.coefficients)) << 10)
        for i in range(7)
    ]
    assert replay(state, [(seeds, scalars)], "gaussian").tolist() == expected


def test_replay_adds_the_directions_of_the_seeds_and_leaves_its_input_alone() -> None:
    seeds = np.arange(70, dtype=np.uint64)
    scalars = CoefficientBlock(2, np.arange(-35, 35, dtype=np.int32))
    state = np.arange(50)
    z = directions(seeds, 50, "rademacher").astype(np.int64)
    expected = state + ((scalars.coefficients @ z) << 2)
    np.testing.assert_array_equal(replay(state, [(seeds, scalars)], "rademacher"), expected)
    np.testing.assert_array_equal(state, np.arange(50))


@pytest.mark.parametrize("zeros", [(), (0.0,), (0.0, -0.0)])
def test_nothing_to_apply_needs_no_direction(zeros: tuple[float, ...]) -> None:
    assert all(p.shift == 0 and not p.coefficients.any() for p in quantize(np.array(zeros)))


@pytest.mark.parametrize("shift", range(11))
def test_the_smallest_shift_that_fits_is_taken(shift: int) -> None:
    widest = WIDEST * 2.0 ** (shift - COEFFICIENT_BITS)
    assert quantized(widest, -widest) == [(shift, [WIDEST, -WIDEST])]
    if shift:
        assert quantized(np.nextafter(widest / 2, 9) + 2.0 ** (shift - 42))[0][0] == shift


def test_coefficients_are_rounded_half_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    assert quantized(*(halves * 2.0**-40)) == [(0, [0, 2, 2, 0, -2, -2])]


def test_what_is_beyond_two_is_split_exactly() -> None:
    passes = quantize(np.array([1024.0, -3.0, 2.0**-30, 2.0]))
    assert len(passes) > 1
    assert {p.shift for p in passes} == {10}
    total = sum(p.coefficients.astype(object) for p in passes)
    assert total.tolist() == [2**40, -3 * 2**30, 1, 2**31]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1024.0000001, -1e300])
def test_what_cannot_be_applied_is_refused(bad: float) -> None:
    with pytest.raises(ReplayError, match="cannot be applied"):
        quantize(np.array([0.5, bad, 0.1]))


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        (2**62, []),
        (-(2**62), []),
        (-(2**63), []),
        (0, [one_pass(10, *[WIDEST] * 64, WIDEST)]),
        (0, [one_pass(10, *[WIDEST, -WIDEST] * 32), one_pass(10, 2**16)]),
    ],
)
def test_what_could_leave_the_exact_range_is_refused(
    state: int, passes: list[CoefficientBlock]
) -> None:
    with pytest.raises(ReplayError, match="does not fit"):
        check_fits(np.array([0, state]), passes)


@pytest.mark.parametrize("sign", [1, -1])
def test_what_just_fits_is_let_through(sign: int) -> None:
    passes = [one_pass(10, *[WIDEST] * 32)]
    room = 2**62 - 1 - 32 * WIDEST * 2**25
    check_fits(np.array([sign * room]), passes)
    with pytest.raises(ReplayError, match="does not fit"):
        check_fits(np.array([sign * (room + 1)]), passes)


def test_a_shrink_makes_room_for_what_follows_it_only() -> None:
    state, wide = np.array([2**61 + 2**60]), one_pass(10, *[WIDEST] * 32)
    check_fits(state, [Shrink(1), wide])
    with pytest.raises(ReplayError, match="does not fit"):
        check_fits(state, [wide, Shrink(1)])


def test_an_update_that_does_not_fit_is_refused_before_anything_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("something was applied")

    monkeypatch.setattr(NumpyBackend, "fold", unexpected)
    small, huge = one_pass(0, 1), one_pass(10, *[WIDEST] * 100)
    groups = [(np.zeros(1, np.uint64), small), (np.zeros(100, np.uint64), huge)]
    with pytest.raises(ReplayError, match="does not fit"):
        replay(NO_STATE, groups, "gaussian", NumpyBackend())


@pytest.mark.parametrize("bits", [1, 2, 12, 61, MAX_SHRINK])
def test_a_shrink_rounds_its_share_down(bits: int) -> None:
    numbers = [0, 1, -1, 7, -7, 2**61 + 12_345, -(2**61) - 12_345, 2**62 - 1]
    after = replay(np.array(numbers), [Shrink(bits)], "gaussian")
    assert after.tolist() == [number - number // 2**bits for number in numbers]


def test_shrinks_keep_their_place_among_the_groups() -> None:
    seeds, scalars = np.array([1], np.uint64), one_pass(0, 10**6)
    group = (seeds, scalars)
    z = directions(seeds, 5, "gaussian")[0].astype(np.int64) * 10**6

    def shrunk(state: NDArray[np.int64]) -> NDArray[np.int64]:
        return state - (state >> 3)

    entries = [group, Shrink(3), Shrink(3), group, group]
    expected = shrunk(shrunk(z)) + 2 * z
    np.testing.assert_array_equal(replay(zero_state(5), entries, "gaussian"), expected)


def test_coefficients_of_equal_seeds_are_summed_first() -> None:
    seeds = np.array([9, 4, 9, 2**64 - 1], np.uint64)
    groups = [
        (seeds, one_pass(0, 1, 2, 3, 4)),
        (seeds[:2], one_pass(10, 7, WIDEST)),
        (seeds[3:], one_pass(1, -2)),
    ]
    unique, coefficients = summed(groups)
    assert unique.tolist() == [4, 9]  # those of the last seed cancel
    assert coefficients.tolist() == [2 + WIDEST * 2**10, 4 + 7 * 2**10]


def test_sums_wider_than_a_pass_are_applied_exactly() -> None:
    """Over many rounds, a pool's coefficients add up to more than a single round could send."""
    seeds, rounds = np.array([5, 6], np.uint64), 40
    once = (seeds, one_pass(10, WIDEST, 1 - WIDEST))
    z = directions(seeds, 50, "rademacher").astype(object)
    expected = rounds * (WIDEST * z[0] + (1 - WIDEST) * z[1]) * 2**10
    state = rebuild(zero_state(50), [once] * rounds, "rademacher")
    assert state.tolist() == [(int(n) + 2**63) % 2**64 - 2**63 for n in expected]


def test_a_rebuild_may_leave_the_range_on_its_way() -> None:
    """Each round fits in its place; summed in another order, the rounds would not fit."""
    seeds = np.array([5], np.uint64)
    there, back = (seeds, one_pass(10, *[WIDEST])), (seeds, one_pass(10, -WIDEST))
    rounds = [entry for _ in range(70) for entry in (there, back)]
    state = zero_state(9)
    for entry in rounds:
        state = replay(state, [entry], "gaussian")
    with pytest.raises(ReplayError, match="does not fit"):
        replay(zero_state(9), rounds, "gaussian")
    np.testing.assert_array_equal(rebuild(zero_state(9), rounds, "gaussian"), state)


@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_the_environment_forces_a_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", name)
    assert default_backend().name == name


@pytest.mark.parametrize("name", ["", "torch", "cuda"])
def test_who_has_no_model_takes_the_fastest_without_torch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", name)
    assert default_backend().name == "numba"


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "Numba")
    with pytest.raises(ReplayError, match="Numba: there is no such backend; use one of numpy"):
        replay(NO_STATE, [], "gaussian")


def test_without_numba_numpy_replays(tmp_path: Path) -> None:
    """This is the case on a phone, which has numpy but no numba."""
    (tmp_path / "numba.py").write_text("raise ImportError('no numba here')")
    code = (
        "from samara.shared.protocol.replay import default_backend; print(default_backend().name)"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path}

    def run(**changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment | changes,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run().stdout == "numpy\n"
    forced = run(SAMARA_REPLAY_BACKEND="numba")
    assert "ReplayError: SAMARA_REPLAY_BACKEND=numba: numba cannot be loaded" in forced.stderr


def test_importing_replay_loads_neither_numba_nor_torch() -> None:
    code = "import sys, samara.shared.protocol.replay; print({'numba', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_digest_is_of_the_layout_and_the_little_endian_state() -> None:
    state = np.array([1, -2, 2**62])
    data = b"".join(int(n).to_bytes(8, "little", signed=True) for n in state)
    assert digest(b"L" * 32, state) == hashlib.sha256(b"L" * 32 + data).digest()
    assert digest(b"L" * 32, state.astype(">i8")) == digest(b"L" * 32, state)


def test_weights_are_the_state_times_the_unit() -> None:
    weights = to_float32(np.array([2**51, -(2**50), 1, 0]))
    assert weights.dtype == np.float32
    assert weights.tolist() == [1.0, -0.5, 2.0**-51, 0.0]


@pytest.mark.parametrize(
    ("state", "nearest"),
    [
        (2**60 + 2**36, 2**60),
        (2**60 + 2**36 + 1, 2**60 + 2**37),
        (2**60 + 3 * 2**36 - 1, 2**60 + 2**37),
        (2**60 + 3 * 2**36, 2**60 + 2**38),
    ],
)
def test_weights_are_rounded_once_and_half_to_even(state: int, nearest: int) -> None:
    both = to_float32(np.array([state, -state]))
    assert both.tolist() == [nearest * 2.0**-51, -nearest * 2.0**-51]


def test_the_small_steps_of_a_thousand_clients_are_not_lost() -> None:
    size, clients = 512, 1000
    instruction = instruction_with(steps=1, queries=4, learning_rate=1e-5)
    rng = np.random.default_rng(1)
    reports = [
        report_to(instruction, device, int(rng.integers(1, 200))) for device in range(clients)
    ]
    delta = aggregate(instruction, reports, weight_cap=100)
    state = replay(zero_state(size), delta.scalar_groups(), "gaussian")

    weights = np.array([min(report.examples, 100) for report in reports], float)
    expected = np.zeros(size)
    for weight, report in zip(weights / weights.sum(), reports, strict=True):
        z = directions(instruction.seeds(report.client)[0], size, "gaussian") / 2048
        expected -= 1e-5 * weight * report.gradients[0].astype(float) @ z / 4
    error = np.linalg.norm(np.ldexp(state.astype(float), -51) - expected)
    assert error < 0.01 * np.linalg.norm(expected)
