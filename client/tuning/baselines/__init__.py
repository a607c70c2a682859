"""Baselines of zeroth-order training: no training, and true gradients."""
