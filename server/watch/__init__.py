"""A run to look at: on the terminal, as a page, and as metrics; all of the same `RunStatus`."""
