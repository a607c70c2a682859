"""Differential privacy of a client's report: fixed-point vector, noise and accountant."""
