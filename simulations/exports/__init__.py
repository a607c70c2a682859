"""Exports of a run's models, and measurements of files that a run needs."""
