"""Tiny random models of the classes in transformers' auto mappings."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SMALL: dict[str, Any] = {
    # width and depth, as models of different ages call them
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embed_dim"), 32),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "projection_dim", "out_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "d_inner"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "mlp_hidden_size"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 3),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "attention_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    # mixtures of experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    # latent attention and state spaces
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    # pictures and sounds
    **dict.fromkeys(("image_size",), 28),
    **dict.fromkeys(("patch_size",), 14),
    "dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 5,
    "use_cache": False,
}
OWN: dict[str, dict[str, Any]] = {}
"""What the configuration of a model type needs besides."""


class Architecture(NamedTuple):
    """A class of transformers and what it is used as.

    Attributes:
        family: causal, masked or encoder.
        kind: its model type.
        name: name of the class.
    """

    family: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"


def architectures() -> list[Architecture]:
    """Every causal, masked and encoder class of text models in the auto mappings."""
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    names = {
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": masked,
        "encoder": {
            kind: name
            for kind, name in modeling_auto.MODEL_MAPPING_NAMES.items()
            if kind in masked
        }
        | dict(modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES),
    }
    found: dict[tuple[str, str], Architecture] = {}
    for family, mapping in names.items():
        for kind, name in sorted(mapping.items()):
            name = name if isinstance(name, str) else name[0]
            found.setdefault((family, name), Architecture(family, kind, name))
    return list(found.values())


def tiny_config(kind: str, vocabulary: int) -> Any:
    """A configuration of a model type with small numbers wherever it has such a setting."""
    return _tiny(CONFIG_MAPPING[kind], vocabulary, OWN.get(kind, {}))


def _tiny(cls: Any, vocabulary: int, own: dict[str, Any]) -> Any:
    usual = cls()
    names = set(vars(usual)) | set(cls.attribute_map)
    chosen = {name: value for name, value in (SMALL | {"vocab_size": vocabulary}).items() if name in names}
    for name, part in cls.sub_configs.items():
        value = getattr(usual, name, None)
        if value is not None and isinstance(value, transformers.PretrainedConfig):
            chosen[name] = _tiny(type(value), vocabulary, own.get(name, {})).to_dict()
    return cls(**chosen | own)


def build(architecture: Architecture, vocabulary: int) -> Any:
    """A model of a class with random weights, all of which matter."""
    config = tiny_config(architecture.kind, vocabulary)
    torch.manual_seed(0)
    network = getattr(transformers, architecture.name)(config)
    return network
