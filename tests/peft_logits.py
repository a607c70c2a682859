"""Logits of PEFT with an exported adapter."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from samara.shared.model.loading import load_structure
from samara.shared.model.quantized import quantize_tables

peft = pytest.importorskip("peft", reason="needs peft")


IDS = torch.tensor([[7, 9, 11, 13, 15, 8]])


def theirs(folder: Path, adapter: Path, **loading: Any) -> torch.Tensor:
    import transformers

    loader = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "encoder": transformers.AutoModel,
    }[load_structure(str(folder)).family]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = loader.from_pretrained(folder, local_files_only=True, **loading)
        if "quantization_config" in loading:
            quantize_tables(base)  # bitsandbytes quantizes the blocks alone
        model = peft.PeftModel.from_pretrained(base, str(adapter)).eval()
        # Where the CPU knows bfloat16, bitsandbytes packs rows for it, and fails at rows shorter
        # than one block of its scales.
        for layer in model.modules():
            if hasattr(layer, "support_avx512bf16_for_cpu"):
                layer.support_avx512bf16_for_cpu = False
        with torch.inference_mode():
            output: torch.Tensor = model(input_ids=IDS)[0]
    return output
