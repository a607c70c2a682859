"""Estimators: points and rows out, losses in, projected gradients at the end."""
