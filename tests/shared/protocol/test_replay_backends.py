"""Every backend gives the same bits as the written rule in numpy."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from forked import LOADED
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import samara.shared.protocol.replay_numba
from samara.shared.errors import ReplayError
from samara.shared.model import replay_torch
from samara.shared.model.replay_torch import (
    CudaBackend,
    TorchBackend,
    backend_for,
    draw_directions,
    replay_on_device,
)
from samara.shared.protocol.directions import Distribution, directions
from samara.shared.protocol.normal_table import NORMAL_TABLE
from samara.shared.protocol.replay import Backend, CoefficientBlock, Shrink, replay, zero_state
from samara.shared.protocol.replay_numba import NumbaBackend
from samara.shared.protocol.replay_numpy import NumpyBackend

GOLDEN = ROOT / "tests" / "golden"
CPU = torch.device("cpu")
SIZES = {
    "gaussian": [0, 1, 2047, 2048, 2049, 4097],
    "rademacher": [0, 1, 64, 8191, 8192, 8193],
    "orthogonal": [1, 3, 128, 1541],
}
WHOLE_ONLY = "orthogonal"
CASES = [(how, size) for how, sizes in SIZES.items() for size in sizes]
each_case = pytest.mark.parametrize(("how", "size"), CASES)


def cuda() -> Backend:
    """The kernel on a GPU, or in Triton's interpreter without a GPU."""
    pytest.importorskip("triton", reason="the extra samara-fl[cuda] is not installed")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return CudaBackend(device)


BACKENDS: dict[str, Callable[[], Backend]] = {
    "numpy": NumpyBackend,
    "numba": lambda: NumbaBackend(1),
    "numba on 3 threads": lambda: NumbaBackend(3),
    "torch": lambda: TorchBackend(CPU),
    "cuda": cuda,
}


@pytest.fixture(params=BACKENDS, scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


@pytest.fixture(autouse=True)
def threads_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samara.shared.protocol.replay_numba, "_WORK_PER_THREAD", 1)


def scalars_of(count: int, bits: int = 64) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Random seeds and coefficients, including the extreme values."""
    rng = np.random.default_rng(count)
    seeds = rng.integers(2**64, size=count, dtype=np.uint64)
    seeds[: min(count, 3)] = [0, 2**64 - 1, 2**32][:count]
    coefficients = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), size=count)
    coefficients[: min(count, 2)] = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1][:count]
    return seeds, coefficients


@each_case
def test_directions_are_those_of_the_specification(
    backend: Backend, how: Distribution, size: int
) -> None:
    seeds, _ = scalars_of(3)
    z = backend.directions(seeds, size, how)
    assert z.dtype == np.int16
    np.testing.assert_array_equal(z, directions(seeds, size, how))
    assert backend.directions(seeds[:0], size, how).shape == (0, size)


@pytest.mark.parametrize(("how", "size"), [case for case in CASES if case[0] != WHOLE_ONLY])
@pytest.mark.parametrize("first", [8192, 3 * 8192])
def test_a_part_of_a_direction_is_cut_out_of_the_whole(
    backend: Backend, how: Distribution, size: int, first: int
) -> None:
    seeds, _ = scalars_of(2)
    z = backend.directions(seeds, size, how, first)
    np.testing.assert_array_equal(z, directions(seeds, first + size, how)[:, first:])
    as_tensor = draw_directions(backend, seeds, size, how, first, CPU)
    assert as_tensor.dtype == torch.int16
    np.testing.assert_array_equal(as_tensor.numpy(), z)


@given(st.sampled_from(["gaussian", "rademacher"]), st.integers(1, 9000))
def test_a_block_that_ends_early_is_folded_as_far_as_it_goes(how: Distribution, size: int) -> None:
    seeds, coefficients = scalars_of(3)
    state = zero_state(size)
    NumbaBackend(1).fold(state, seeds, coefficients, how)
    z = directions(seeds, size, how).astype(np.int64)
    np.testing.assert_array_equal(state, (coefficients[:, None] * z).sum(axis=0))
    np.testing.assert_array_equal(NumbaBackend(1).directions(seeds, size, how), z)


def test_orthogonal_directions_are_refused_in_parts(backend: Backend) -> None:
    seeds, _ = scalars_of(2)
    with pytest.raises(ReplayError, match="makes only whole directions"):
        backend.directions(seeds, 10, "orthogonal", 8192)


@each_case
@pytest.mark.parametrize(("count", "bits"), [(0, 64), (1, 64), (4, 32), (6, 33)])
def test_folding_is_the_written_sum_modulo_the_width_of_the_state(
    backend: Backend, how: Distribution, size: int, count: int, bits: int
) -> None:
    seeds, coefficients = scalars_of(count, bits)
    state = np.random.default_rng(size).integers(-(2**63), 2**63, size=size)
    expected = state.copy()
    for coefficient, z in zip(coefficients, directions(seeds, size, how), strict=True):
        expected += coefficient * z.astype(np.int64)
    backend.fold(state, seeds, coefficients, how)
    np.testing.assert_array_equal(state, expected)


@pytest.mark.parametrize("shift", [1, 12, 31, 32, 62])
@pytest.mark.parametrize("how", SIZES)
def test_coefficients_may_share_any_power_of_two(
    backend: Backend, how: Distribution, shift: int
) -> None:
    seeds, coefficients = scalars_of(5)
    coefficients >>= shift
    coefficients <<= shift
    state, expected = np.arange(300), np.arange(300)
    for coefficient, z in zip(coefficients, directions(seeds, 300, how), strict=True):
        expected += coefficient * z.astype(np.int64)
    backend.fold(state, seeds, coefficients, how)
    np.testing.assert_array_equal(state, expected)


@pytest.mark.parametrize("how", SIZES)
def test_neither_order_nor_split_of_the_seeds_changes_a_bit(
    backend: Backend, how: Distribution
) -> None:
    seeds, coefficients = scalars_of(7)
    whole, split = zero_state(3000), zero_state(3000)
    backend.fold(whole, seeds, coefficients, how)
    order = np.random.default_rng(0).permutation(7)
    for part in (order[:3], order[3:4], order[4:]):
        backend.fold(split, seeds[part], coefficients[part], how)
    np.testing.assert_array_equal(split, whole)


@pytest.mark.parametrize("how", SIZES)
def test_a_state_on_a_torch_device_is_replayed_to_the_same_bits(
    backend: Backend, how: Distribution
) -> None:
    seeds, coefficients = scalars_of(6, 32)
    groups = [(seeds, CoefficientBlock(shift, coefficients.astype(np.int32))) for shift in (0, 3)]
    start = np.random.default_rng(0).integers(-(2**61), 2**61, 3000)
    before = torch.from_numpy(start.copy())
    after = replay_on_device(before, groups, how, backend)
    np.testing.assert_array_equal(after.numpy(), replay(start, groups, how, backend))
    np.testing.assert_array_equal(before.numpy(), start)


@pytest.mark.parametrize(("end", "sign"), [(2**62, 1), (2**62, -1), (2**63, -1)])
def test_a_state_on_a_torch_device_stays_in_its_range(end: int, sign: int) -> None:
    seeds, room = np.array([1], np.uint64), 2**15
    one = [(seeds, CoefficientBlock(0, np.array([1], np.int32)))]
    state = torch.zeros(9, dtype=torch.int64)
    state[3] = sign * (2**62 - room - 1)
    replay_on_device(state, one, "gaussian", NumpyBackend())
    state[3] = sign * (end - room)
    with pytest.raises(ReplayError, match="does not fit the exact state"):
        replay_on_device(state, one, "gaussian", NumpyBackend())


GOLDEN_DIRECTIONS = [
    case
    for name in ("directions.json", "orthogonal.json")
    for case in json.loads((GOLDEN / name).read_text())
]


@pytest.mark.parametrize("case", GOLDEN_DIRECTIONS)
def test_directions_of_the_golden_file(backend: Backend, case: dict[str, Any]) -> None:
    seed = np.array([int(case["seed"], 16)], np.uint64)
    z = backend.directions(seed, case["count"], case["distribution"])[0]
    assert z[: len(case["head"])].tolist() == case["head"]
    assert hashlib.sha256(z.astype("<i2").tobytes()).hexdigest() == case["sha256"]


@pytest.mark.parametrize("case", json.loads((GOLDEN / "replay.json").read_text()))
def test_replay_of_the_golden_file(backend: Backend, case: dict[str, Any]) -> None:
    entries = [
        Shrink(entry["shrink"])
        if "shrink" in entry
        else (
            np.array([int(seed, 16) for seed in entry["seeds"]], np.uint64),
            CoefficientBlock(entry["shift"], np.array(entry["coefficients"], np.int32)),
        )
        for entry in case["entries"]
    ]
    start = (np.arange(case["count"]) - case["count"] // 2) * 2**46
    state = replay(start, entries, case["distribution"], backend)
    assert [str(number) for number in state[: len(case["head"])].tolist()] == case["head"]
    assert hashlib.sha256(state.astype("<i8").tobytes()).hexdigest() == case["sha256"]


@pytest.mark.parametrize("how", SIZES)
def test_many_threads_at_once_do_not_disturb_each_other(how: Distribution) -> None:
    from concurrent.futures import ThreadPoolExecutor

    seeds, coefficients = scalars_of(5)
    expected = zero_state(50_000)
    NumpyBackend().fold(expected, seeds, coefficients, how)

    def folded(threads: int) -> NDArray[np.int64]:
        state = zero_state(50_000)
        NumbaBackend(threads).fold(state, seeds, coefficients, how)
        return state

    with ThreadPoolExecutor(4) as pool:
        for state in pool.map(folded, [1, 2, 3, 40]):
            np.testing.assert_array_equal(state, expected)


def test_threads_are_those_of_numba_unless_said_otherwise() -> None:
    assert NumbaBackend(5).threads == 5
    assert NumbaBackend().threads == samara.shared.protocol.replay_numba.config.NUMBA_NUM_THREADS
    with pytest.raises(ReplayError, match="cannot run on -1 threads"):
        NumbaBackend(-1)


class _Phone(torch.nn.Module):
    """A phone's graph: directions, and a folded and shrunk state, as pure functions."""

    def __init__(self, how: Distribution) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("table", torch.from_numpy(NORMAL_TABLE.copy()))

    def forward(
        self, state: torch.Tensor, seeds: torch.Tensor, coefficients: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(self.table, torch.Tensor)
        folded = replay_torch.fold(state, seeds, coefficients, self.table, self.how)
        z = replay_torch.directions(seeds, self.table, 100, self.how)
        return z, replay_torch.shrink(folded, 3)


@pytest.mark.parametrize("how", SIZES)
def test_an_exported_program_gives_the_same_bits(how: Distribution) -> None:
    seeds, coefficients = scalars_of(3)
    state = np.arange(2500)
    inputs = tuple(torch.from_numpy(a) for a in (state, seeds.view(np.int64), coefficients))
    program = torch.export.export(_Phone(how), inputs).module()
    z, after = program(*inputs)
    NumpyBackend().fold(state, seeds, coefficients, how)
    np.testing.assert_array_equal(after.numpy(), state - (state >> 3))
    np.testing.assert_array_equal(z.numpy(), directions(seeds, 100, how))


def test_beside_a_model_torch_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_for(CPU).name == "numba"
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "torch")
    assert backend_for(CPU).name == "torch"
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "numpy")
    assert backend_for(CPU).name == "numpy"


def test_what_cannot_be_loaded_is_refused_if_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "samara.shared.model.replay_cuda", None)
    monkeypatch.setenv("SAMARA_REPLAY_BACKEND", "cuda")
    with pytest.raises(ReplayError, match=r"triton cannot be loaded.*samara-fl\[cuda\]"):
        backend_for(CPU)
    monkeypatch.delenv("SAMARA_REPLAY_BACKEND")
    monkeypatch.setattr(replay_torch, "TorchBackend", lambda device: device)
    assert backend_for(torch.device("cuda")) == torch.device("cuda")


DIGESTS = """
import hashlib, torch, numpy as np
from samara.shared.model.replay_torch import TorchBackend
from samara.shared.protocol.replay_numba import NumbaBackend
seeds = np.arange(20, dtype=np.uint64) << np.uint64(40)
coefficients = (np.arange(20) - 10) * 123_456_789
for backend in (NumbaBackend(2), TorchBackend(torch.device("cpu"))):
    for how in ("gaussian", "rademacher"):
        state = np.arange(20_000)
        backend.fold(state, seeds, coefficients, how)
        z = backend.directions(seeds, 20_000, how)
        print(backend.name, how, hashlib.sha256(state.tobytes() + z.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_the_instruction_set_does_not_change_a_bit(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
        "ATEN_CPU_CAPABILITY": "default",
    }
    exec(DIGESTS, {})
    one = capsys.readouterr().out
    other = subprocess.run(
        [sys.executable, "-c", LOADED + DIGESTS],  # with other variables it starts cold
        env=os.environ | plain,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert len(one.splitlines()) == 4
    assert other == one


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("how", SIZES)
def test_a_gpu_replays_a_large_adapter_to_the_same_bits(how: Distribution) -> None:
    seeds, coefficients = scalars_of(64)
    on_gpu, on_cpu = zero_state(811_008), zero_state(811_008)
    backend_for(torch.device("cuda")).fold(on_gpu, seeds, coefficients, how)
    NumbaBackend().fold(on_cpu, seeds, coefficients, how)
    np.testing.assert_array_equal(on_gpu, on_cpu)
