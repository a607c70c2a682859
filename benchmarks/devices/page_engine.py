"""The phone page's engine in Chromium beside others: steps by rows, quantized programs, replay.

    python -m benchmarks.devices.page_engine [--model MODEL] [--layers readout]
        [--part steps|programs|replay|graphics]

*steps*: the losses of 2q adapters (top:1) on B examples of 32 tokens, by the page's modules with
ONNX Runtime in WebAssembly, by torch eagerly and by ExecuTorch with XNNPACK, each on one thread.
*programs*: of each quantization the bytes that a browser fetches, the time in which it loads them,
the memory of the page's process, and the largest difference of a loss in the self-check. *replay*:
elements per second of the page's replay and of numba's. *graphics*: the projected gradients of 200
queries by WebGPU beside those by WebAssembly; SwiftShader takes a graphics processor's place, a
program, so that nothing is learnt of seconds. Seconds are those of the processor, in a browser of
the process that has the page, since others use the machine; medians of the repetitions.
Needs the built page (`make phone-page`), Chromium, and the extras phone and onnx.
"""

import argparse
import json
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from benchmarks.driven_browser import Tab, driven, find_chromium
from samara.devices.phone.export import (
    PreparedModel,
    ProgramShapes,
    export_program,
    prepare_model,
    step_inputs,
)
from samara.devices.phone.manifest import Manifest, PhoneQuantization
from samara.devices.phone.page_server.published_files import page_files, program_files
from samara.devices.phone.page_server.settings import BUILT_PAGE
from samara.devices.phone.program import ScoresModule, TrainStepModule
from samara.devices.phone.reference_client.runtime import load_module, run_method
from samara.shared.config import RunConfig
from samara.shared.directions import Distribution
from samara.shared.replay import CoefficientBlock, replay, zero_state
from samara.shared.replay_numba import NumbaBackend

SEQUENCE, REPETITIONS = 32, 5
STEPS = ((1, 4), (2, 8), (8, 8), (8, 16))
"""Queries q and examples B of a step, which has 2·q·B rows."""
STEPS_AT_ONCE = 20
"""Steps of a page that are timed as one: the clock of a process has hundredths of a second."""
QUERIES, PIECE = 200, 5
"""Queries of the comparison, and of a call of the page."""
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "rademacher")
CASES = ((384, 12_800), (73_728, 64), (811_008, 16))
"""Trained numbers d, and seeds of a round: a readout of two labels, and two adapters."""
SWIFTSHADER = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")
"""Chromium's options for WebGPU on a machine without a graphics processor."""
QUANTIZATIONS: tuple[PhoneQuantization, ...] = ("none", "float16", "int8", "int4")
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
PREPARE = """(async () => {
  const [{ program, encoder, scorer }] = globalThis.loaded;
  const { ids, positions, labels } = program.manifest.check;
  const call = { ids: ids.map((row) => (Array.isArray(row[0]) ? row : [row])), positions };
  const examples = { ...(await encoder.represent(call)), labels: Int32Array.from(labels) };
  const adapters = 2 * program.manifest.queries;
  const weights = Array.from({ length: adapters }, () => new Float32Array(program.layout.size));
  const rows = labels.map((_, row) => row);
  globalThis.work = () => scorer(weights, examples, rows).then(() => 0);
})()"""
GRADIENTS = """(async (which, first, count) => {
  const [{ direction }, { perturbed, meanLosses }] = [
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
    const [plus, minus] = await meanLosses(scorer, weights, examples, rows);
    found.push((plus - minus) / (2 * check.epsilon));
  }
  return found;
})"""
ADAPTER = """import("/library/onnxruntime-webgpu.mjs").then(({ env }) => env.webgpu.device).then(
  ({ adapterInfo: { vendor, architecture } }) => `${vendor} ${architecture}`)"""
REPLAY = """(async (size, count, distribution) => {
  const { replay, zeroState } = await import("/replay.js");
  const seeds = BigUint64Array.from({ length: count }, (_, at) => BigInt(at) + 7n);
  const coefficients = Int32Array.from(seeds, (_, at) => 2 ** 30 - at);
  const entries = [{ seeds, scalars: { shift: 0, coefficients } }];
  globalThis.work = async () => replay(zeroState(size), entries, distribution).length;
})"""


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def page_with(program: Path | None, *flags: str) -> Iterator[Tab]:
    """A page of the built files in Chromium, with a program as a gateway serves it."""
    browser = find_chromium()
    if browser is None:
        raise SystemExit("needs Chromium on the PATH")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "page"
        published = page_files(BUILT_PAGE) | (program_files(program) if program else {})
        for path, one in published.items():
            file = folder / (path.removeprefix("/") or "index.html")
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(one.file, file)
        (folder / "empty.html").write_text("<!DOCTYPE html>")
        handler = partial(_Quiet, directory=str(folder))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with driven(browser, Path(made) / "profile", *flags) as tab:
                tab.open(f"http://127.0.0.1:{server.server_port}/empty.html")
                tab.until("location.pathname === '/empty.html'")
                yield tab
            server.shutdown()


def loading(engine: str) -> str:
    """Return the script that loads and checks the program on an engine of the page."""
    return LOAD.replace("ENGINE", engine)


def prepared(model: str, layers: str, quantization: PhoneQuantization) -> PreparedModel:
    """The model with its adapter."""
    settings = {"model.path": model, "task": "messages", "adapter.layers": layers, "threads": 1}
    return prepare_model(RunConfig.of(settings, "benchmark"), quantization)


def page_processes() -> list[psutil.Process]:
    """Return the processes that have the pages of this process's browsers."""
    children = psutil.Process().children(recursive=True)
    return [process for process in children if "--type=renderer" in process.cmdline()]


def page_seconds() -> float:
    """Return the seconds of the processor that these pages have had."""
    times = [process.cpu_times() for process in page_processes()]
    return float(sum(one.user + one.system for one in times))


def page_memory() -> float:
    """Return the most MiB, resident, that one of these pages has had."""
    status = [Path(f"/proc/{one.pid}/status").read_text() for one in page_processes()]
    peaks = [re.search(r"VmHWM:\s+(\d+) kB", text) for text in status]
    return max(int(peak[1]) for peak in peaks if peak) / 1024


def seconds_of(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Return the median seconds of some work, after one time that is not counted."""
    work()
    found = []
    for _ in range(REPETITIONS):
        begun = clock()
        work()
        found.append(clock() - begun)
    return median(found)


def seconds_in_page(tab: Tab, count: int = 1) -> float:
    """Return the median seconds of what a page has prepared as its work, done so many times."""
    script = f"(async () => {{ for (let at = 0; at < {count}; at++) await work(); }})()"
    return seconds_of(partial(tab.run, script), page_seconds) / count


def steps(model: str, folder: Path) -> None:
    """Print the seconds of a step in each engine, by its rows."""
    from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool

    torch.set_num_threads(1)
    _unsafe_reset_threadpool(1)
    for queries, batch in STEPS:
        shapes, layers = ProgramShapes(queries, batch, SEQUENCE), "top:1"
        page, phone = folder / "page.onnx", folder / "phone.pte"
        export_program(
            prepared(model, layers, "none"), shapes, "none", "none", page, runtime="onnx"
        )
        with page_with(page) as tab:
            tab.run(loading("WASM"))
            tab.run(PREPARE)
            browser = seconds_in_page(tab, STEPS_AT_ONCE)
        ready = prepared(model, layers, "none")
        assert isinstance(ready.parts, ScoresModule)
        inputs = step_inputs(zero_state(ready.layout.size), Manifest.read(page).check)
        module = TrainStepModule(ready.parts, ready.layout)
        with torch.no_grad():
            eager = seconds_of(partial(module, *inputs))
        export_program(ready, shapes, "none", "xnnpack", phone)
        arrays = [tensor.numpy() for tensor in inputs]
        executed = seconds_of(partial(run_method, load_module(phone), "forward", arrays))
        print(
            f"{2 * queries * batch} rows (q {queries}, B {batch}): page {1e3 * browser:.0f} ms, "
            f"eager {1e3 * eager:.0f}, ExecuTorch {1e3 * executed:.0f}",
            flush=True,
        )


def programs(model: str, kinds: list[str], folder: Path) -> None:
    """Print what each quantization is in a browser."""
    for layers in kinds:
        for quantization in QUANTIZATIONS:
            file = folder / f"{layers[:3]}-{quantization}.onnx"
            ready = prepared(model, layers, quantization)
            shapes = ProgramShapes(2, 4, SEQUENCE)
            export_program(ready, shapes, quantization, "none", file, runtime="onnx")
            with page_with(file) as tab:
                before = page_seconds()
                found = tab.run(loading("WASM"))
                seconds, peak = page_seconds() - before, page_memory()
            print(
                f"{layers}, {quantization}: {found['bytes'] / 2**20:.1f} MiB, loaded in "
                f"{seconds:.1f} s, at most {peak:.0f} MiB resident, losses differ by at most "
                f"{found['worst']:.2g}",
                flush=True,
            )


def by_graphics(
    model: str, layers: str, quantization: PhoneQuantization, folder: Path, queries: int = QUERIES
) -> tuple[str, NDArray[np.float64]]:
    """Return the graphics adapter, and projected gradients [2, queries]: WebAssembly, WebGPU."""
    file = folder / f"graphics-{layers[:3]}-{quantization}.onnx"
    ready, shapes = prepared(model, layers, quantization), ProgramShapes(1, 4, SEQUENCE)
    export_program(ready, shapes, quantization, "none", file, runtime="onnx")
    with page_with(file, *SWIFTSHADER) as tab:
        tab.run(loading("WASM"))
        tab.run(loading("WEBGPU"))
        g = [
            [
                one
                for first in range(0, queries, PIECE)
                for one in tab.run(f"{GRADIENTS}({at}, {first}, {PIECE})")
            ]
            for at in range(2)
        ]
        return tab.run(ADAPTER), np.array(g)


def graphics(model: str, kinds: list[str], folder: Path) -> None:
    """Print what WebGPU computes beside WebAssembly."""
    for layers in kinds:
        for quantization in QUANTIZATIONS:
            adapter, g = by_graphics(model, layers, quantization, folder)
            print(
                f"{layers}, {quantization}, {adapter}: g of {g.shape[1]} queries differ by at most "
                f"{np.abs(g[0] - g[1]).max():.2g}, root mean square {np.sqrt((g**2).mean()):.2g}",
                flush=True,
            )


def numba_speed(size: int, count: int, distribution: Distribution) -> float:
    """Return elements per second of the compiled backend on one thread."""
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(7)
    block = CoefficientBlock(0, (2**30 - np.arange(count)).astype(np.int32))
    backend, state = NumbaBackend(1), zero_state(size)
    entries = [(seeds, block)]
    return size * count / seconds_of(lambda: replay(state, entries, distribution, backend))


def replays() -> None:
    """Print the speeds of replay."""
    with page_with(None) as tab:
        for size, count in CASES:
            for distribution in DISTRIBUTIONS:
                tab.run(f"{REPLAY}(...{json.dumps([size, count, distribution])})")
                page = size * count / seconds_in_page(tab)
                numba = numba_speed(size, count, distribution)
                print(
                    f"d = {size}, {count} seeds, {distribution}: Chromium {page / 1e6:.0f}, numba "
                    f"{numba / 1e6:.0f} million elements/s, {numba / page:.1f}x",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--layers", nargs="+", default=["readout", "top:1"], help="of programs")
    parser.add_argument("--part", choices=("steps", "programs", "replay", "graphics"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if given.part in ("replay", None):
            replays()
        if given.part in ("programs", None):
            programs(given.model, given.layers, Path(made))
        if given.part in ("graphics", None):
            graphics(given.model, given.layers, Path(made))
        if given.part in ("steps", None):
            steps(given.model, Path(made))


if __name__ == "__main__":
    main()
