"""The methods of `samara tune`, the spaces that each method can train, and default settings."""

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
"""Source of a classification's scores: label words, or a classifier with a named start."""

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
"""Spaces that each method can train, beginning with the default; empty if it trains nothing."""

BY_PEFT: tuple[SpaceName, ...] = ("dora", "vera")
"""Spaces of adapters that PEFT implements."""
LOW_RANK: tuple[SpaceName, ...] = ("lora-fa", "lora", *BY_PEFT)
"""Spaces of adapters in chosen blocks. The outputs of the layers below never change."""
MEZO: tuple[Optimizer, ...] = ("mezo", "mezo-momentum", "mezo-adam")
ZEROTH_ORDER: tuple[Optimizer, ...] = ("prge", *MEZO)
ESTIMATING: tuple[Optimizer, ...] = ("prge", "mezo", "mezo-momentum")
"""Methods that estimate a learning rate during the run. Adam has a default for each space."""
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
"""Weight γ of the projectors' norms in the loss from which LSP-Offload learns projectors."""
LSP_RATE = 1e-3
"""Default η of LSP-Offload, whose learned projectors shrink Adam's updates. In
docs/measurements/lsp.md, each data set has an η with the lowest validation loss. The default is the
middle of these values.
"""
