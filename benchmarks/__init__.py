"""Measurements: one file per benchmark."""
