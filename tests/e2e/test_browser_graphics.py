"""The page's program by WebGPU, which Chromium emulates in software, beside WebAssembly."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from browsers import chromium, serve_folder
from built_page import built_page
from driven_browser import Tab, driven
from numpy.typing import NDArray

from samara.devices.gateway.page_server.published_files import page_files, program_files
from samara.devices.gateway.page_server.settings import BUILT_PAGE
from samara.devices.phone.export import ProgramShapes, export_program, prepare_model
from samara.devices.phone.manifest import PhoneQuantization
from samara.shared.settings.config import RunConfig

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
pytest.importorskip("onnxruntime", reason="pip install 'samara-fl[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")


PIECE = 5
"""Number of queries per call of the page."""
SWIFTSHADER = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Chromium's options for WebGPU on a machine without a graphics processor."""
LOAD = """(async () => {
  Object.defineProperty(globalThis, "crossOriginIsolated", { value: false }); // one thread
  const [{ Encoder }, engines, { readProgram, selfCheck }, files, { readoutScorer }] =
    await Promise.all(["encoder", "engines", "program", "download", "readout"].map(
      (name) => import(`/${name}.js`)));
  const index = await files.fetchIndex();
  const text = new TextDecoder().decode(await files.fetchFile(index.manifest, () => {}));
  const program = await readProgram(text);
  const model = await files.fetchModel(index, () => {});
  const encoder = await Encoder.load(model, program, engines.ENGINE);
  const scorer = program.readout.tokens
    ? (...given) => encoder.scores(...given)
    : readoutScorer(program.readout);
  (globalThis.loaded ??= []).push({ program, encoder, scorer });
  const worst = await selfCheck(program, (call) => encoder.represent(call), scorer);
  return { worst, bytes: files.sizeOf(index) };
})()"""
GRADIENTS = """(async (which, first, count) => {
  const [{ direction }, { perturbed, batchLosses }] = [
    await import("/philox.js"), await import("/readout.js")];
  const { program, encoder, scorer } = globalThis.loaded[which];
  const [{ check }, { size, distribution }] = [program.manifest, program.layout];
  const ids = check.ids.map((row) => (Array.isArray(row[0]) ? row : [row]));
  const numbers = await encoder.represent({ ids, positions: check.positions });
  const examples = { ...numbers, labels: Int32Array.from(check.labels) };
  const rows = check.labels.map((_, row) => row);
  const found = [];
  for (let seed = first; seed < first + count; seed++) {
    const z = direction(BigInt(seed), size, distribution);
    const weights = [1, -1].map((sign) =>
      perturbed(new Float32Array(size), z, check.epsilon, sign));
    const [plus, minus] = await batchLosses(scorer, weights, examples, rows, false);
    found.push((plus - minus) / (2 * check.epsilon));
  }
  return found;
})"""
ADAPTER = """import("/library/onnxruntime-webgpu.mjs").then(({ env }) => env.webgpu.device).then(
  ({ adapterInfo: { vendor, architecture } }) => `${vendor} ${architecture}`)"""


@contextmanager
def page_with(program: Path, folder: Path, *flags: str) -> Iterator[Tab]:
    """A page of the built files in Chromium, with a program served like at a gateway."""
    published = page_files(BUILT_PAGE) | program_files(program)
    for path, one in published.items():
        file = folder / (path.removeprefix("/") or "index.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(one.file, file)
    (folder / "empty.html").write_text("<!DOCTYPE html>")
    profile = folder.with_name("profile")
    with serve_folder(folder) as address, driven(chromium(), profile, *flags) as tab:
        tab.open(f"{address}/empty.html")
        tab.until("location.pathname === '/empty.html'")
        yield tab


def by_graphics(
    model: str, layers: str, quantization: PhoneQuantization, folder: Path, queries: int
) -> tuple[str, NDArray[np.float64]]:
    """Return the adapter, and projected gradients of WebAssembly and WebGPU, [2, queries]."""
    file = folder / f"graphics-{layers[:3]}-{quantization}.onnx"
    settings = {"model.path": model, "task": "messages", "adapter.layers": layers, "threads": 1}
    ready = prepare_model(RunConfig.of(settings, "test"), quantization)
    shapes = ProgramShapes(1, 4, 32)
    export_program(ready, shapes, quantization, "none", file, runtime="onnx")
    with page_with(file, folder / "page", *SWIFTSHADER) as tab:
        tab.run(LOAD.replace("ENGINE", "WASM"))
        tab.run(LOAD.replace("ENGINE", "WEBGPU"))
        g = [
            [
                one
                for first in range(0, queries, PIECE)
                for one in tab.run(f"{GRADIENTS}({at}, {first}, {PIECE})")
            ]
            for at in range(2)
        ]
        return tab.run(ADAPTER), np.array(g)


@pytest.mark.parametrize(
    ("layers", "quantization"), [("readout", "none"), ("top:1", "none"), ("top:1", "int4")]
)
def test_webgpu_gives_the_projected_gradients_of_webassembly(
    layers: str, quantization: PhoneQuantization, tmp_path: Path
) -> None:
    chromium()
    built_page()
    adapter, g = by_graphics("embedded", layers, quantization, tmp_path, 20)
    assert adapter == "google swiftshader"
    assert np.abs(g[1]).max() > 0.1
    np.testing.assert_allclose(g[1], g[0], atol=2e-3)
