"""Baselines for zeroth-order training: methods without training, and with backward passes."""
