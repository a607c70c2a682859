"""The methods of `samara tune`: the spaces that each can train, and their automatic settings."""

from typing import Literal

Optimizer = Literal[
    "prge",
    "mezo",
    "mezo-momentum",
    "mezo-adam",
    "fo-adam",
    "fo-sgd",
    "lora",
    "zero-offload",
    "lsp",
    "zero-shot",
    "icl",
    "linear-probe",
]
SpaceName = Literal["lora-fa", "lora", "dora", "vera", "prefix", "head", "full", "linear"]
ClassifierName = Literal["label-words", "new", "linear-probe"]
"""Source of the scores of a classification: label words, or a classifier by its initialization."""

SPACES: dict[Optimizer, tuple[SpaceName, ...]] = {
    "prge": ("lora-fa", "lora", "vera", "prefix"),
    "mezo": ("full", "lora", "lora-fa", "dora", "vera", "prefix", "head"),
    "mezo-momentum": ("full", "lora", "lora-fa", "dora", "vera", "prefix", "head"),
    "mezo-adam": ("full", "lora", "lora-fa", "dora", "vera", "prefix", "head"),
    "fo-adam": ("lora-fa", "full", "lora", "dora", "vera", "prefix", "head"),
    "fo-sgd": ("lora-fa", "full", "lora", "dora", "vera", "prefix", "head"),
    "lora": ("lora",),
    "zero-offload": ("full", "linear"),
    "lsp": ("linear",),
    "zero-shot": (),
    "icl": (),
    "linear-probe": (),
}
"""The spaces that each method can train, the default first; empty if the method trains nothing."""

BY_PEFT: tuple[SpaceName, ...] = ("dora", "vera")
"""Spaces of adapters that PEFT implements."""
LOW_RANK: tuple[SpaceName, ...] = ("lora-fa", "lora", *BY_PEFT)
"""Spaces of adapters in chosen blocks; the outputs of lower layers are the same in every pass."""
MEZO: tuple[Optimizer, ...] = ("mezo", "mezo-momentum", "mezo-adam")
ZEROTH_ORDER: tuple[Optimizer, ...] = ("prge", *MEZO)
ESTIMATING: tuple[Optimizer, ...] = ("prge", "mezo", "mezo-momentum")
"""Methods that estimate a learning rate during the run; Adam uses the default of its space."""
FIRST_ORDER: tuple[Optimizer, ...] = ("fo-adam", "fo-sgd", "lora", "zero-offload", "lsp")
QUERIES: dict[Optimizer, int] = {"prge": 4}
BATCH = 16
EPSILON: dict[SpaceName, float] = {
    "full": 1e-3,
    "lora": 1e-2,
    "lora-fa": 1e-2,
    "dora": 1e-2,
    "vera": 1e-2,
    "prefix": 1e-1,
    "head": 1e-3,
}
ADAM_RATE: dict[SpaceName, float] = {
    "full": 1e-5,
    "linear": 1e-5,
    "lora": 5e-4,
    "lora-fa": 1e-2,
    "dora": 5e-4,
    "vera": 5e-3,
    "prefix": 1e-2,
    "head": 1e-4,
}
LSP_GAMMA = 1e-4
"""γ of LSP-Offload, the weight of the projectors' norms while the projectors are learned."""
LSP_RATE = 1e-3
"""η of LSP-Offload, whose learned projectors shrink Adam's updates. It is the middle of the rates
with the lowest validation loss on the data sets of docs/measurements/lsp.md.
"""
