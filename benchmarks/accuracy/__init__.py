"""Measurements of accuracy, and of what decides it."""
