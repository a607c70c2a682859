"""Tuning on one machine, without a federation: settings, data, methods, and the run itself."""
