"""Measurements of what a server can learn from the scalars that it receives."""
