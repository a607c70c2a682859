"""Differential privacy of a client's report: its fixed-point vector, noise, and the accountant."""
