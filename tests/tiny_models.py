"""Tiny models with random weights, and the tokenizer of their words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

GOOD = ["good", "great", "fine", "kind", "warm"]


BAD = ["bad", "terrible", "awful", "cold", "rude"]


THINGS = ["film", "day", "meal", "walk"]


WORDS = [*GOOD, *BAD, *THINGS, "it", "was", "the", "a", "very", "not", ".", "!"]


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>"]


def save_tokenizer(folder: Path, family: str) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    names: dict[str, Any] = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if family == "causal":
        names |= {"bos_token": "<s>"}
    else:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return len(vocabulary)


def save_model(folder: Path, family: str, blocks: int = 3) -> Path:
    import transformers

    vocabulary = save_tokenizer(folder, family)
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": blocks,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    }
    network: Any
    if family == "causal":
        network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    elif family == "masked":
        network = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    else:
        network = transformers.BertModel(transformers.BertConfig(**sizes))
        (folder / "modules.json").write_text("[]")
    network.save_pretrained(folder)
    return folder


SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


ARCHITECTURES: dict[str, tuple[str, Callable[[int], Any], set[str]]] = {
    "GPT-2": (
        "causal",
        lambda v: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=v, n_embd=32, n_layer=3, n_head=4, n_positions=64)
        ),
        {"c_attn"},
    ),
    "GPT-NeoX": (
        "causal",
        lambda v: transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(vocab_size=v, **SIZES)
        ),
        {"query_key_value"},
    ),
    "OPT": (
        "causal",
        lambda v: transformers.OPTForCausalLM(
            transformers.OPTConfig(
                vocab_size=v,
                hidden_size=32,
                ffn_dim=48,
                num_hidden_layers=3,
                num_attention_heads=4,
                max_position_embeddings=64,
                word_embed_proj_dim=32,
            )
        ),
        {"q_proj", "v_proj"},
    ),
    "RoBERTa": (
        "masked",
        lambda v: transformers.RobertaForMaskedLM(
            transformers.RobertaConfig(vocab_size=v, pad_token_id=0, **SIZES)
        ),
        {"query", "value"},
    ),
    "DistilBERT": (
        "masked",
        lambda v: transformers.DistilBertForMaskedLM(
            transformers.DistilBertConfig(
                vocab_size=v,
                dim=32,
                hidden_dim=48,
                n_layers=3,
                n_heads=4,
                max_position_embeddings=64,
            )
        ),
        {"q_lin", "v_lin"},
    ),
}
