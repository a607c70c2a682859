"""Engines of simulated federations: in this process, or Flower's with Ray."""
