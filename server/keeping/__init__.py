"""Keeping a run: backups, restoring, and what is wrong with its folder."""
