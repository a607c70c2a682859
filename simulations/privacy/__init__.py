"""The cost of differential privacy, computed before a run."""
