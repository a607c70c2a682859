"""The sizes of published models by name, to estimate a step without the model's files."""


def _llama(
    vocabulary: int,
    hidden: int,
    wide: int,
    layers: int,
    heads: int,
    keys: int,
    context: int,
    **more: int,
) -> dict[str, int]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "max_position_embeddings": context,
        **more,
    }


def _opt(hidden: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "vocab_size": 50_272,
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2_048,
    }


def _qwen3(hidden: int, wide: int, layers: int, heads: int, tied: bool) -> dict[str, int]:
    return _llama(
        151_936, hidden, wide, layers, heads, 8, 40_960, head_dim=128, tie_word_embeddings=tied
    )


BUILT_IN: dict[str, dict[str, int]] = {
    "tinyllama-1.1b": _llama(32_000, 2_048, 5_632, 22, 32, 4, 2_048),
    "llama2-7b": _llama(32_000, 4_096, 11_008, 32, 32, 32, 4_096),
    "opt-1.3b": _opt(2_048, 24, 32),
    "opt-2.7b": _opt(2_560, 32, 32),
    "opt-6.7b": _opt(4_096, 32, 32),
    "opt-13b": _opt(5_120, 40, 40),
    "opt-30b": _opt(7_168, 48, 56),
    "opt-66b": _opt(9_216, 64, 72),
    "opt-175b": _opt(12_288, 96, 96),
    "qwen3-1.7b": _qwen3(2_048, 6_144, 28, 16, tied=True),
    "qwen3-4b": _qwen3(2_560, 9_728, 36, 32, tied=True),
    "qwen3-8b": _qwen3(4_096, 12_288, 36, 32, tied=False),
    "qwen3-14b": _qwen3(5_120, 17_408, 40, 40, tied=False),
    "qwen3-32b": _qwen3(5_120, 25_600, 64, 64, tied=False),
}
"""Sizes by model name, with the keys of transformers' LlamaConfig or (with ``ffn_dim``) OPTConfig.

Sources: Zhang et al., "TinyLlama" (2024), table 1; Touvron et al., "Llama 2" (2023), whose 7B model
has the sizes of "LLaMA" (2023), table 2; Zhang et al., "OPT" (2022), table 1; the config.json files
of Qwen3 (Yang et al., 2025).
"""
