"""The parts that all sides share: errors, settings, directions, replay, frames, ledger, tasks."""

DISTRIBUTION = "samara-fl"
"""The name of Samara on the package index, where ``samara`` is another project."""
