"""Measurements of speed, as ratios of two things measured side by side."""
