"""Passages: texts written by a run's models, beside those of their clients."""
