"""Passages: texts that the models of a run write, beside what their clients wrote."""
