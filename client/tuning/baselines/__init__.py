"""Baselines for zeroth-order training: no training, and training on true gradients."""
