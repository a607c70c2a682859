"""Comparison of finished runs, client by client."""
