"""The page's program by WebGPU, which Chromium has in software, beside WebAssembly."""

from pathlib import Path

import numpy as np
import pytest
from browsers import chromium
from built_page import built_page

from benchmarks.devices.page_engine import by_graphics
from samara.devices.phone.manifest import PhoneQuantization

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
pytest.importorskip("onnxruntime", reason="pip install 'samara-fl[onnx]'")
pytest.importorskip("onnxscript", reason="pip install 'samara-fl[onnx]'")


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
