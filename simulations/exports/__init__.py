"""Exports of a run's models, and files that a run begins with."""
