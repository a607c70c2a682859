"""A project of one's own: a task file and a scenario written after a look at the data."""
