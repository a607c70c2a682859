"""A graph's weights in separate files, as float16 and as int8, give the same results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samara.devices.phone import onnx_weights
from samara.devices.phone.onnx_weights import split_weights, store_as_float16, store_tables_as_int8

onnx = pytest.importorskip("onnx", reason="pip install 'samara-fl[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'samara-fl[onnx]'")

X = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)


def matrices(exact: bool) -> list[Any]:
    """Three matrices; the second is larger than the first and third together."""
    made = [
        np.random.default_rng(2 + number).normal(size=shape).astype(np.float32)
        for number, shape in enumerate([(16, 32), (32, 64), (64, 8)])
    ]
    return [each.astype(np.float16).astype(np.float32) for each in made] if exact else made


def graph_of(weights: list[Any]) -> Any:
    """A graph that multiplies by the matrices, and adds a small bias."""
    helper, names = onnx.helper, [f"w{number}" for number in range(len(weights))]
    inputs = ["x", *(f"h{number}" for number in range(len(weights)))]
    nodes = [
        helper.make_node("MatMul", [inputs[number], name], [inputs[number + 1]])
        for number, name in enumerate(names)
    ]
    nodes.append(helper.make_node("Add", [inputs[-1], "bias"], ["y"]))
    stored = [onnx.numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)]
    stored.append(onnx.numpy_helper.from_array(np.full(8, 0.1, np.float32), "bias"))
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", float32, [3, 16])],
        [helper.make_tensor_value_info("y", float32, [3, 8])],
        stored,
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def results(content: Any) -> Any:
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def test_a_graph_with_its_weights_apart_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = graph_of(matrices(exact=False))
    whole = model.SerializeToString()
    monkeypatch.setattr(onnx_weights, "SHARD_BYTES", 4096)
    split = split_weights(model, "model")
    # the first is alone, since the second fits in no file with it, and is larger than one may be
    sizes = {name: len(content) for name, content in split.shards.items()}
    assert sizes == {
        "model.weights-000.bin": 2048,
        "model.weights-001.bin": 8192,
        "model.weights-002.bin": 2048,
    }
    assert [one.bytes for one in split.listed] == list(sizes.values())
    assert len(split.graph) < 1024
    for name, content in split.shards.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.onnx").write_bytes(split.graph)
    np.testing.assert_array_equal(results(str(tmp_path / "model.onnx")), results(whole))


def test_small_weights_share_a_file() -> None:
    split = split_weights(graph_of(matrices(exact=False)), "model")
    assert [len(content) for content in split.shards.values()] == [12_288]


def test_what_float16_holds_is_stored_so_and_changes_no_result() -> None:
    model = graph_of(matrices(exact=True))
    whole = model.SerializeToString()
    store_as_float16(model)
    stored = model.SerializeToString()
    assert len(stored) < 0.6 * len(whole)
    np.testing.assert_array_equal(results(stored), results(whole))


def test_what_float16_cannot_hold_stays() -> None:
    weights = matrices(exact=True)
    weights[1] = weights[1] * np.float32(1e6)
    model = graph_of(weights)
    store_as_float16(model)
    kinds = [tensor.data_type for tensor in model.graph.initializer]
    half, float32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert kinds == [half, float32, half, float32]


def lookup_of(table: Any, is_also_added: bool = False) -> Any:
    """A graph that looks up rows of a table."""
    helper, float32, int64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    if is_also_added:
        nodes.append(helper.make_node("ReduceSum", ["table"], ["sum"], keepdims=1))
        nodes.append(helper.make_node("Add", ["rows", "sum"], ["y"]))
    else:
        nodes.append(helper.make_node("Identity", ["rows"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("ids", int64, [2, 3])],
        [helper.make_tensor_value_info("y", float32, [2, 3, table.shape[1]])],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def rounded(table: Any) -> Any:
    """Round a table to numbers that int8 with one scale per row represents exactly."""
    farthest = np.abs(table).argmax(1)[:, None]
    scales = np.take_along_axis(table, farthest, 1) / np.float32(-128)
    return np.clip(np.rint(table / scales), -128, 127) * scales


@pytest.mark.parametrize("case", ["rounded", "not rounded", "also used otherwise", "small"])
def test_tables_are_stored_as_int8_where_nothing_changes(case: str) -> None:
    rows = 8 if case == "small" else 50
    table = np.random.default_rng(3).normal(size=(rows, 16)).astype(np.float32)
    if case != "not rounded":
        table[1] = 0
        table[2:] = rounded(table[2:])
        table[0] = np.eye(16)[3]
    model = lookup_of(table, case == "also used otherwise")
    before, ids = model.SerializeToString(), np.array([[0, 1, 2], [3, 4, 7]])
    store_tables_as_int8(model)
    after = model.SerializeToString()
    assert (len(after) < len(before) / 2) == (case == "rounded")
    contents = [
        onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(
            None, {"ids": ids}
        )[0]
        for content in (before, after)
    ]
    np.testing.assert_array_equal(*contents)
