"""The informed basis: an exact lift, a checked file, and a layout that names it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bases import ORIGIN, random_basis
from helpers import layout_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from samara.shared.errors import ModelError, ReplayError, SamaraError
from samara.shared.model.perturbations import WeightMap
from samara.shared.protocol.basis import (
    MAX_ROW_SUM,
    ROUNDED_BITS,
    SCALE_BITS,
    Basis,
    read_basis,
)
from samara.shared.protocol.layout import (
    BASIS_PART,
    LABEL_BIAS_GROUP,
    BasisReference,
    Layout,
    Tensor,
)
from samara.shared.protocol.replay import STATE_BITS
from samara.shared.protocol.start import Start

BASIS = random_basis(20, 5)
RANGE = 2**46  # ±1/32
THETAS = st.lists(st.integers(-RANGE, RANGE), min_size=5, max_size=5)


def exact_lift(basis: Basis, theta: list[int]) -> list[int]:
    """The lift in Python's integers, which have no limit."""
    rounded = [round_half_even(number) for number in theta]
    weights = [t * int(s) for t, s in zip(rounded, basis.scales, strict=True)]
    sums = [
        sum(w * int(u) for w, u in zip(weights, column, strict=True)) for column in basis.vectors.T
    ]
    return [number << (ROUNDED_BITS - SCALE_BITS) for number in sums]


def round_half_even(number: int) -> int:
    floor, rest = divmod(number, 2**ROUNDED_BITS)
    half = 2 ** (ROUNDED_BITS - 1)
    return floor + int(rest > half or (rest == half and floor % 2 == 1))


@given(THETAS)
def test_the_lift_is_exact(theta: list[int]) -> None:
    assert BASIS.lift(np.array(theta, np.int64)).tolist() == exact_lift(BASIS, theta)


@given(THETAS, THETAS)
def test_the_lift_of_a_sum_of_rounded_coordinates_is_the_sum_of_the_lifts(
    one: list[int], other: list[int]
) -> None:
    first, second = ((np.array(t, np.int64) >> ROUNDED_BITS) << ROUNDED_BITS for t in (one, other))
    np.testing.assert_array_equal(
        BASIS.lift(first + second), BASIS.lift(first) + BASIS.lift(second)
    )


@given(st.integers(1, 40), st.integers(0, 2**32))
def test_no_lift_overflows_at_the_bounds(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = np.where(rng.integers(2, size=(size, 50)), 127, -127).astype(np.int8)
    scale = MAX_ROW_SUM // (127 * size)
    basis = Basis.decode(Basis.of(ORIGIN, vectors, np.full(size, scale, np.int32)).encoded)
    theta = np.where(vectors[:, 0] > 0, 2**62 - 1, 1 - 2**62)
    assert all(-(2**63) < sum_ < 2**63 for sum_ in exact_sums(basis, theta))
    with pytest.raises(ReplayError, match="an element of the adapter is outside its range"):
        basis.lift(theta)


def exact_sums(basis: Basis, theta: NDArray[np.int64]) -> list[int]:
    lifted = exact_lift(basis, theta.tolist())
    return [number >> (ROUNDED_BITS - SCALE_BITS) for number in lifted]


def test_the_lift_agrees_with_the_lifted_directions() -> None:
    z = np.random.default_rng(1).integers(-9_000, 9_000, (3, 22)).astype(np.int16)
    weights = WeightMap(None, BASIS)
    lifted = weights.directions(z)
    assert lifted.shape == (3, 22 - 5 + 20)
    states = z.astype(np.int64) << (STATE_BITS - 11)
    expected = [torch.from_numpy(weights.weights(state)) * 2**11 for state in states]
    torch.testing.assert_close(lifted, torch.stack(expected), rtol=1e-5, atol=1e-2)
    assert torch.equal(lifted[:, 20:], torch.from_numpy(z[:, 5:]).float())


def test_a_start_is_added_to_the_lift() -> None:
    start, theta = np.full(20, 2**50, np.int64), np.full(5, 2**45, np.int64)
    weights = WeightMap(Start(bytes(32), bytes(32), start), BASIS).weights(theta)
    exact = [2.0**-51 * (2**50 + number) for number in exact_lift(BASIS, theta.tolist())]
    np.testing.assert_array_equal(weights, np.array(exact, np.float32))


def test_quantizing_loses_little() -> None:
    vectors = np.random.default_rng(2).normal(size=(7, 300))
    error = np.abs(Basis.quantize(ORIGIN, vectors).as_float32() - vectors)
    assert float(error.max()) < 0.03


@pytest.mark.parametrize(
    "vectors", [np.zeros((1, 3)), np.full((1, 3), np.nan), np.ones((1, 3)) * 1e9]
)
def test_vectors_that_cannot_be_stored_are_refused(vectors: NDArray[np.float64]) -> None:
    with pytest.raises(ModelError, match=r"the basis has|could overflow"):
        Basis.quantize(ORIGIN, vectors)


def test_reading_undoes_writing(tmp_path: Path) -> None:
    file = tmp_path / "basis.safetensors"
    file.write_bytes(BASIS.encoded)
    read = read_basis(str(file))
    assert (read.origin, read.reference) == (BASIS.origin, BASIS.reference)
    np.testing.assert_array_equal(read.vectors, BASIS.vectors)
    np.testing.assert_array_equal(read.scales, BASIS.scales)


def hostile() -> dict[str, bytes]:
    good, metadata = BASIS.encoded, {"samara": metadata_text()}
    tensors = {"vectors": BASIS.vectors, "scales": BASIS.scales}
    return {
        "empty": b"",
        "truncated header": good[:40],
        "truncated tensors": good[:-1],
        "longer": good + b"0",
        "huge header": (2**40).to_bytes(8, "little") + good[8:],
        "not JSON": (5).to_bytes(8, "little") + b"#####",
        "deep JSON": (60_000).to_bytes(8, "little") + b"[" * 60_000,
        "no metadata": save(tensors),
        "other format": save(tensors, {"samara": metadata_text(format="samara basis 2")}),
        "missing field": save(tensors, {"samara": '{"format": "samara basis 1"}'}),
        "wrong field": save(tensors, {"samara": metadata_text(texts="many")}),
        "metadata is a list": save(tensors, {"samara": "[]"}),
        "metadata is a string": save(tensors, {"samara": '"basis"'}),
        "header is a list": (2).to_bytes(8, "little") + b"[]",
        "other dtype": save(tensors | {"vectors": BASIS.vectors.astype(np.int16)}, metadata),
        "one more tensor": save(tensors | {"more": BASIS.scales}, metadata),
        "fewer scales": save(tensors | {"scales": BASIS.scales[:-1]}, metadata),
        "zero scale": save(tensors | {"scales": BASIS.scales * 0}, metadata),
        "more vectors than elements": save(tensors | {"vectors": BASIS.vectors[:, :4]}, metadata),
        "flat": save(tensors | {"vectors": BASIS.vectors.ravel()}, metadata),
        "overflow": save(tensors | {"scales": BASIS.scales * 0 + MAX_ROW_SUM}, metadata),
    }


def metadata_text(**changes: object) -> str:
    header = json.loads(BASIS.encoded[8 : 8 + int.from_bytes(BASIS.encoded[:8], "little")])
    return json.dumps(json.loads(header["__metadata__"]["samara"]) | changes)


@pytest.mark.parametrize("name", hostile())
def test_a_file_that_is_no_basis_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "basis.safetensors"
    file.write_bytes(hostile()[name])
    with pytest.raises(ModelError, match=r"adapter\.basis: .*basis"):
        read_basis(str(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere: there is no such file; write one"):
        read_basis(str(tmp_path / "nowhere"))


def layout_with_basis() -> Layout:
    plain = layout_of(20)
    bias = Tensor("label bias", 2, 1, LABEL_BIAS_GROUP)
    return replace(plain, tensors=(*plain.tensors, bias), basis=BASIS.reference)


def test_a_layout_with_a_basis_has_coordinates_in_place_of_elements() -> None:
    layout = layout_with_basis()
    assert (layout.size, layout.element_count, layout.adapter_element_count) == (7, 22, 20)
    assert [(part.name, part.numbers) for part in layout.parts] == [
        (BASIS_PART, slice(0, 5)),
        ("label bias", slice(5, 7)),
    ]
    assert layout.tensor_slice("label bias") == (slice(20, 22), 2)
    assert Layout.from_json(layout.to_json()) == layout
    assert layout.hash != replace(layout, basis=None).hash
    assert layout.adapter_hash == layout_of(20, "rademacher").adapter_hash


@pytest.mark.parametrize(
    "basis",
    [
        BasisReference("ab" * 32, 0),
        BasisReference("ab" * 32, 21),
        BasisReference("AB" * 32, 5),
        BasisReference("ab", 5),
    ],
)
def test_a_layout_with_an_impossible_basis_is_refused(basis: BasisReference) -> None:
    with pytest.raises(SamaraError, match="the basis in the layout does not fit"):
        Layout.from_json(replace(layout_with_basis(), basis=basis).to_json())


def test_a_basis_that_does_not_come_first_is_refused() -> None:
    layout = layout_with_basis()
    with pytest.raises(SamaraError, match="the basis in the layout does not fit"):
        Layout.from_json(replace(layout, tensors=layout.tensors[::-1]).to_json())


@pytest.mark.parametrize("content", [5, {"sha256": "ab" * 32}, {"size": "x", "sha256": ""}, []])
def test_a_layout_with_a_malformed_basis_is_refused(content: object) -> None:
    text = json.dumps(json.loads(layout_of().to_json()) | {"basis": content})
    with pytest.raises(SamaraError, match="layout"):
        Layout.from_json(text)
