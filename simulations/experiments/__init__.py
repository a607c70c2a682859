"""Experiments: runs, sweeps and grids that one command plans and runs."""
