import json
from typing import Any

import pytest
from helpers import layout_of
from hypothesis import given
from hypothesis import strategies as st

from samara.shared.errors import SamaraError
from samara.shared.protocol.layout import ADAPTER_GROUP, Layout, Tensor

SIZES = st.integers(1, 1000)
TENSORS = st.builds(Tensor, st.text(), SIZES, SIZES, st.just(ADAPTER_GROUP))
LAYOUTS = st.builds(
    Layout,
    st.lists(TENSORS, min_size=1, max_size=4, unique_by=lambda t: t.name).map(tuple),
    SIZES,
    st.floats(1e-3, 1e3),
    st.integers(0, 2**63 - 1),
    st.sampled_from(["gaussian", "rademacher"]),
)
CONTENT: dict[str, Any] = json.loads(layout_of().to_json())


@given(LAYOUTS)
def test_reading_undoes_writing(layout: Layout) -> None:
    read = Layout.from_json(layout.to_json())
    assert read == layout
    assert read.hash == layout.hash


@given(st.lists(LAYOUTS, min_size=2, max_size=2))
def test_layouts_hash_alike_only_if_they_are_alike(layouts: list[Layout]) -> None:
    one, other = layouts
    assert (one.hash == other.hash) is (one == other)


@given(LAYOUTS)
def test_tensors_lie_side_by_side(layout: Layout) -> None:
    end = 0
    for tensor in layout.tensors:
        place, rows = layout.tensor_slice(tensor.name)
        assert (place.start, place.stop - place.start) == (end, tensor.size)
        assert rows == tensor.rows
        end = place.stop
    assert end == layout.size


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": 2},
        {"normal_table_sha256": "0" * 64},
        {"a_scale": "1"},
        {"rank": "four"},
        {"rank": 1.5},
        {"tensors": []},
        {"tensors": [{"name": "a", "rows": 0, "columns": 1, "group": "adapter"}]},
        {"tensors": 5},
        {"distribution": "cauchy"},
        {"distribution": [1]},
        {"more": 1},
    ],
)
def test_a_layout_that_this_version_cannot_mean_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SamaraError):
        Layout.from_json(json.dumps(CONTENT | changes))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "5", "{", '"\\ud800"'])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(SamaraError, match="not a layout"):
        Layout.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps(CONTENT | {"rank": float("inf")}),
        json.dumps(CONTENT | {"rank": 0}),
        json.dumps(CONTENT | {"alpha": float("nan")}),
        json.dumps(CONTENT | {"a_seed": -1}),
        json.dumps(
            CONTENT | {"tensors": [{"name": "a", "rows": 10**12, "columns": 9, "group": "adapter"}]}
        ),
        json.dumps(CONTENT | {"tensors": [CONTENT["tensors"][0]] * 2}),
    ],
    ids=["nested", "infinite", "no rank", "not a number", "negative seed", "huge", "twice"],
)
def test_a_hostile_layout_is_refused(text: str) -> None:
    with pytest.raises(SamaraError):
        Layout.from_json(text)
