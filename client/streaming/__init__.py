"""Blocks of a model that are not in memory: where they lie, and how they come and go."""
