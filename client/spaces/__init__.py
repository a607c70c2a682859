"""Spaces of trained parameters: all parameters, the head, adapters or a prefix."""
