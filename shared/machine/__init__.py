"""This machine: its processor, its memory, and its installed code."""
