"""Comparison of finished runs for each client."""
