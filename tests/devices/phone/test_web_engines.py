"""The engines that compute the phone page's model: WebGPU and WebAssembly."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_runs import PageRun
from typescript import PHONE, RunCore, node_runner

from samara.shared.protocol.replay import digest

TOKENIZER = """
export class Tokenizer {
  encode(text) {
    if (text === "refused") throw new Error("the tokenizer refuses it");
    if (text === "unknown") return { ids: [1, undefined] };
    if (text.length > 1000) throw new Error("more is read than is needed");
    return { ids: Array.from(text, () => 1) };
  }
}
"""
ENGINE = """
export const env = { wasm: {} };
export class Tensor {
  constructor(type, data, shape) { Object.assign(this, { data, shape }); }
}
export class InferenceSession {
  static create = async () => new InferenceSession();
  async run({ positions }) {
    const filled = (width) => new Float32Array(positions.shape[0] * width).fill(%(score)d);
    return { scores: { data: filled(%(labels)d) }, features: { data: filled(%(features)d) } };
  }
}
"""
"""An engine whose every number is the same."""


@pytest.mark.parametrize(
    ("adapter", "engines"),
    [
        ("missing", ["wasm"]),
        (None, ["wasm"]),
        ("throws", ["wasm"]),
        ({"isFallbackAdapter": True}, ["wasm"]),
        ({"isFallbackAdapter": False}, ["webgpu", "wasm"]),
        ({}, ["webgpu", "wasm"]),
    ],
)
def test_a_graphics_processor_is_used_where_there_is_one(
    run_page: RunCore, adapter: Any, engines: list[str]
) -> None:
    assert run_page([["engines", adapter]]) == [engines]


@pytest.mark.parametrize(
    ("failing", "done"),
    [
        ("", "make webgpu, use webgpu 1, use webgpu 2, use webgpu 3"),
        ("make webgpu", "make webgpu, make wasm, use wasm 1, use wasm 2, use wasm 3"),
        ("fetch", "fetch, failed: fetch, make webgpu, use webgpu 2, use webgpu 3"),
        (
            "use webgpu 2",
            "make webgpu, use webgpu 1, use webgpu 2, make wasm, use wasm 2, use wasm 3",
        ),
        (
            "make webgpu, use wasm 1",
            "make webgpu, make wasm, use wasm 1, failed: use wasm 1, make wasm, use wasm 2, "
            "use wasm 3",
        ),
    ],
)
def test_where_a_graphics_processor_fails_webassembly_goes_on(
    run_page: RunCore, failing: str, done: str
) -> None:
    assert run_page([["onEngines", failing.split(", ")]]) == [done.split(", ")]


def test_a_row_that_the_tokenizer_refuses_fails_no_engine(
    page_run: Callable[..., PageRun], tmp_path: Path
) -> None:
    run = page_run()
    manifest, layout = json.loads(run.manifest), run.history.layout
    at_zero = digest(layout.hash, np.zeros(layout.size, np.int64)).hex()
    nothing: dict[str, Any] = {"seeds": [], "coefficients": [], "losses": [], "digest": at_zero}
    manifest["check"] |= nothing
    shape = {name: manifest["readout"][name] for name in ("labels", "features")}
    folder = tmp_path / "page"
    folder.mkdir()
    run_page = node_runner(folder, PHONE)
    library = folder / "src" / "library"
    (library / "tokenizers.mjs").write_text(TOKENIZER)
    for score, name in enumerate(("onnxruntime", "onnxruntime-webgpu")):
        (library / f"{name}.mjs").write_text(ENGINE % (shape | {"score": score}))
    (found,) = run_page([["model", json.dumps(manifest), ["a", "refused", "unknown", "b"]]])
    by_webgpu = ",".join("1" * shape["labels"])
    assert found == [by_webgpu, "refused", "refused", by_webgpu]
    long = ["short", "unknown", "", "a" * 100_000, "a" * 160]
    (lengths,) = run_page([["tokens", long, 9]])
    unreadable = "The model cannot read this text. Write it in other words."
    assert lengths == [5, unreadable, unreadable, 9, 9]
    (of_chat,) = run_page([["tokens", ["  two words\n", "a" * 160], 9, "said: "]])
    assert of_chat == [6 + 9 - 2, 6 + 9]
