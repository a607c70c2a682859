"""The terms of a run: its demands on a client, signed by the run's operator."""
