"""Spaces that zeroth-order training moves: all parameters, LoRA, LoRA-FA, prefixes."""
