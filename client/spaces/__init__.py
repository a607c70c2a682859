"""Spaces in which a zeroth-order step moves: full parameters, LoRA, LoRA-FA, prefixes."""
