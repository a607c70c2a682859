"""Tiny models of the shapes that are streamed, with tied and untied heads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import save_tokenizer

from samara.shared.tasks.kinds import ClassificationTask

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
SHAPES: dict[str, Callable[[int, bool], Any]] = {
    "OPT": lambda v, tied: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=v,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
            init_std=0.2,
            tie_word_embeddings=tied,
        )
    ),
    "Llama": lambda v, tied: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=v, num_key_value_heads=2, tie_word_embeddings=tied, **SIZES
        )
    ),
    "Qwen": lambda v, tied: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=v, num_key_value_heads=2, head_dim=8, tie_word_embeddings=tied, **SIZES
        )
    ),
    "GPT-NeoX": lambda v, tied: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(vocab_size=v, tie_word_embeddings=tied, **SIZES)
    ),
    "BERT": lambda v, tied: transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=v, tie_word_embeddings=tied, **SIZES)
    ),
}
ONE_SHAPE_IN_EVERY_RUN = [
    pytest.param(shape, marks=[] if shape == "Llama" else pytest.mark.exhaustive)
    for shape in SHAPES
]
"""Every architecture; only one of them outside ``make test-all``."""

Shape = Callable[[str, bool], Path]
"""The folder of a shape, tied or not: the fixture `shape_folder`."""
TEXTS = ("the film was good .", "a day", "the meal was not very cold ! a walk", "kind")
TASK = ClassificationTask.model_validate(
    {
        "name": "test",
        "text": "{text}",
        "question": " it was {word} .",
        "words": ["terrible", "great"],
        "labels": [0, 1],
    }
)


def save_shape(folder: Path, shape: str, tied: bool, **saving: Any) -> Path:
    """Write a model with random weights, including its norms and biases."""
    family = "masked" if shape == "BERT" else "causal"
    vocabulary = save_tokenizer(folder, family)
    torch.manual_seed(0)
    network = SHAPES[shape](vocabulary, tied)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    network.save_pretrained(folder, **saving)
    return folder
