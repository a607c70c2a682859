"""The plan of a run: its form of a prompt, size and expected time."""
