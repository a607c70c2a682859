"""The settings of a run by section, and the rules for automatic values of open settings."""
