"""Measurements of speed, as ratios of two interleaved measurements."""
