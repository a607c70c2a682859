"""The price of differential privacy, before a run."""
