"""Triton is imported only on machines with a GPU, and torch only by code that runs a model."""

import subprocess
import sys

import pytest
import torch
from helpers import ROOT

from samara.shared.model.optional_imports import triton_hidden


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs triton")
def test_a_model_is_loaded_without_triton() -> None:
    pytest.importorskip("triton", reason="pip install 'samara-fl[cuda]'")
    code = (
        "import sys; from samara.shared.model.loading import load_base_model; "
        "from samara.shared.model.model_folder import find_model_folder; "
        "from samara.shared.model.tokenizer import load_tokenizer; "
        "load_tokenizer(find_model_folder('embedded')); "
        "load_base_model('embedded'); assert 'triton' not in sys.modules; "
        "import triton; assert triton.__version__"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU needs triton")
def test_an_error_leaves_nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    with pytest.raises(ImportError), triton_hidden():
        import triton  # noqa: F401
    assert "triton" not in sys.modules


def test_what_waits_for_a_clients_trainer_needs_no_torch() -> None:
    code = (
        "import sys; import samara.devices.live.client_supervisor; "
        "from samara.devices.live.settings import resolve_device; resolve_device('cpu'); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
