"""Creation of a project: a task file and a scenario that are drafted from the user's data."""
