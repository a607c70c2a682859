"""Gradient estimators: generators that request losses and return projected gradients."""
