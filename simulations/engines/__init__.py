"""Engines of simulated federations: the in-process engine, and Flower's engine with Ray."""
