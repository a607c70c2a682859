"""The reference phone loads a program by ExecuTorch's runtime alone."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

REFUSED = """
import sys
from pathlib import Path
from samara.devices.phone.reference_client.runtime import load_module
from samara.shared.errors import DeviceError

Path("model.pte").write_bytes(bytes(64))
try:
    load_module(Path("model.pte"))
except DeviceError as error:
    assert "not a program" in str(error), error
assert "executorch.extension.pybindings._C" in sys.modules
assert not {"executorch.exir", "torchao"} & set(sys.modules)
"""


def test_a_phone_imports_no_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("executorch", reason="pip install 'samara-fl[phone]' to run programs")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([sys.executable, "-c", REFUSED], cwd=tmp_path, check=True)
