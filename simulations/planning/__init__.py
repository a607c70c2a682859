"""The plan of a run: the form of its prompts, its size, and its expected duration."""
