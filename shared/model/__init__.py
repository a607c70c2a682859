"""The shared parts that need torch: adapters, loading, scoring."""
