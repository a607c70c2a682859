"""Displays of a run's progress, on a terminal or in a notebook."""
