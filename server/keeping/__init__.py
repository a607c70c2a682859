"""Keeping a run safe: backups, restoring, and checks of its folder."""
