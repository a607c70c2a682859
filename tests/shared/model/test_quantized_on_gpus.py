"""bitsandbytes on a pretended GPU: its operations run there and give the bits of the CPU."""

from typing import Any

import pytest
import torch
from accelerator import pretended_gpus

from samara.shared.model.quantized import check_quantization, quantize_linear


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_gpu_quantizes_and_multiplies(kind: Any) -> None:
    weight = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    bias, x = torch.arange(24.0), torch.ones(2, 64)
    plain = quantize_linear(weight, bias, kind, torch.float32)(x)
    with pretended_gpus() as gpus:
        device = torch.device("cuda:1")
        check_quantization(device)
        layer = quantize_linear(weight.to(device), bias, kind, torch.float32)
        assert {buffer.device for buffer in layer.buffers()} == {device}
        product = layer(x.to(device))
        assert product.device == device
        assert not gpus.launches[torch.device("cuda:0")]
        if kind == "nf4":
            assert any("bitsandbytes" in name for name in gpus.launches[device])
        found = product.cpu()
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            layer(x)
    assert torch.equal(found, plain)
