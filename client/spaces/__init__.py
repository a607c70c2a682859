"""Spaces of trainable parameters: all parameters, LoRA, LoRA-FA, prefixes."""
