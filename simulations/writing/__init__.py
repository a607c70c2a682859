"""Passages: texts of a run's models and their scores."""
