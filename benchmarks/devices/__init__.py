"""Comparisons of the time and memory models of devices with measurements."""
