"""The result of a run, and its traffic."""
