"""The server side: strategy, aggregation, sampling, store. Imports no torch."""
