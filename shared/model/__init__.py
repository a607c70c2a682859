"""The parts of the contract that need torch: adapters, loading, scoring."""
