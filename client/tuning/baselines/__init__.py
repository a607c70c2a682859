"""Baselines for zeroth-order training: no training, and training with backward passes."""
