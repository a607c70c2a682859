"""Measurements of accuracy, and of the choices that affect it."""
