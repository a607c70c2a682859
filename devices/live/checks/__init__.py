"""Checks of a machine before it takes part in a run."""
