"""A device in the field: checked, started, kept up, stopped."""
