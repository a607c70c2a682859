"""Creation of a project: a task file and a scenario drafted from the user's data."""
