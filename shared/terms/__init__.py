"""The terms of a run: what it asks of a client, signed by its operator."""
